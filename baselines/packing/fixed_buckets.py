"""Fixed buckets: the layout of torch DistributedDataParallel.

Paper: Li et al., PyTorch Distributed, VLDB 2020, section 4.2. Parameters are laid into buckets
in the order in which their gradients become ready; a bucket closes when it has reached its
limit: 1 MiB for the first, so that communication starts early, then 25 MiB. A bucket travels
when all of its gradients are ready, in the order of the buckets.

Number formats fill buckets of their own, each with its first limit. Buckets go in the order of their
first gradients, as in torch's `compute_bucket_assignment_by_size`. After its rebuild DDP has closed
buckets in the order in which they closed and open ones in that of a hash table; here they stay sorted.

DDP starts from the reverse registration order and rebuilds its buckets after the first step, in
the order seen on rank 0; our engine does the same with every rank-invariant packing. With 2
ranks the weights equal DDP's bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import Card, Knob, Packed, Segment, Slot, size

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class FixedBuckets:
    """`bucket_bytes` may be passed by the last tensor of a bucket, as in DDP."""

    card: ClassVar[Card] = Card(
        name="fixed-buckets",
        slot=Slot.PACKING,
        summary="torch DDP's bucket layout: 1 MiB, then 25 MiB",
        paper="Li et al., PyTorch Distributed, VLDB 2020",
    )
    rank_invariant: ClassVar[bool] = True
    slices: ClassVar[bool] = False
    knobs: ClassVar[Mapping[str, Knob]] = {"bucket_bytes": Knob(64 * 1024, 256 * MIB)}
    bucket_bytes: int = size(25 * MIB, "bytes")
    first_bucket_bytes: int = size(MIB, "bytes")

    def __post_init__(self) -> None:
        if min(self.bucket_bytes, self.first_bucket_bytes) < 1:
            raise ValueError(
                f"bucket_bytes is {self.bucket_bytes} and first_bucket_bytes {self.first_bucket_bytes}; use at least 1 "
                "of each (unfused sends each tensor alone)"
            )

    def pack(self, ready: Sequence[Segment]) -> Packed:
        """Fill one open bucket per number format; what is open at the end travels too, in order of first gradients."""
        groups: list[tuple[Segment, ...]] = []
        filling: dict[torch.dtype, list[Segment]] = {}
        sizes: dict[torch.dtype, int] = {}
        limits: dict[torch.dtype, int] = {}
        for segment in ready:  # formats never mix: a bucket each
            kind = segment.dtype
            filling.setdefault(kind, []).append(segment)
            sizes[kind] = sizes.get(kind, 0) + segment.nbytes
            if sizes[kind] >= limits.get(kind, self.first_bucket_bytes):
                groups.append(tuple(filling.pop(kind)))
                sizes[kind], limits[kind] = 0, self.bucket_bytes
        groups.extend(map(tuple, filling.values()))
        return Packed(tuple(sorted(groups, key=lambda group: group[0].index)))
