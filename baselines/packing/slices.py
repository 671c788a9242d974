"""Slices: every tensor is cut into messages of at most so many elements, so that an ordering can interrupt a large one.

Paper: Jayarajan et al., Priority-based Parameter Propagation (P3), MLSys 2019, arXiv 1905.03960: the granularity of
synchronisation need not be the tensor. A tensor of n elements becomes ⌈n / s⌉ messages, all of s elements but the
last; a smaller one travels alone. Messages go in ready order, within a tensor from its first element on: alone, under
`fifo`, slices only pay more start-up times α; they are there for orderings by priority.

`cut="elements"` is P3's way. `cut="rows"` is ByteScheduler's: m = min(⌈n/s⌉, rows) parts of whole rows (first
dimension), ⌊rows/m⌋ each and the last rows mod m one more, so parts are even and longer than s where a row is:
`slices(slice_elements=1000000, cut='rows')+bytescheduler`.

Default s = 40,000, that of the authors' code in MXNet (`MXNET_KVSTORE_SLICE_THRESHOLD`); the paper says 50,000.
Tuners search what ByteScheduler's code searches, 2 to 32 million parameters (there the searched value is then never
read: `_partition_unit` is set and `_partition` used).

Slices are numbered over the model, and `parameter-server` sends slice i whole to server i mod S, as P3's authors do.
Differs from the paper: they number in the order of the layers, here in ready order, which is the reverse.
Not verified against the paper's text, nor its value of s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import ClassVar

from baselines.api import Card, Knob, Packed, Segment, Slot, size


@dataclass(frozen=True, slots=True)
class Slices:
    card: ClassVar[Card] = Card(
        name="slices",
        slot=Slot.PACKING,
        summary="every tensor cut into messages of at most slice_elements",
        paper="Jayarajan et al., P3, MLSys 2019, arXiv 1905.03960",
    )
    rank_invariant: ClassVar[bool] = True
    slices: ClassVar[bool] = True
    knobs: ClassVar[Mapping[str, Knob]] = {"slice_elements": Knob(2_000_000, 32_000_000)}
    slice_elements: int = size(40_000, "elements")
    cut: str = "elements"

    def __post_init__(self) -> None:
        if self.slice_elements < 1:
            raise ValueError(
                f"slice_elements is {self.slice_elements}; use at least 1 (unfused sends each tensor uncut)"
            )

        if self.cut not in ("elements", "rows"):
            raise ValueError(f"cut is {self.cut!r}; use 'elements' (P3) or 'rows' (ByteScheduler)")

    def pack(self, ready: Sequence[Segment]) -> Packed:
        """Slices of every tensor in ready order, numbered over the model."""
        parts = (part for segment in ready for part in self._parts(segment))
        return Packed(tuple((replace(part, slice=number),) for number, part in enumerate(parts)))

    def _parts(self, segment: Segment) -> Iterator[Segment]:
        """At least one slice, so that an empty tensor too is sent and counts as landed."""
        for start, stop in pairwise(self._ends(segment)):
            yield replace(segment, start=start, stop=stop)

    def _ends(self, segment: Segment) -> list[int]:
        if self.cut == "elements" or not segment.numel:
            return [*range(segment.start, max(segment.stop, segment.start + 1), self.slice_elements), segment.stop]
        num_rows = segment.shape[0] if segment.shape else 1
        num_parts = min(-(-segment.numel // self.slice_elements), num_rows)
        each, more = divmod(num_rows, num_parts)
        rows = accumulate([each] * (num_parts - more) + [each + 1] * more, initial=0)
        return [segment.start + own * (segment.numel // num_rows) for own in rows]
