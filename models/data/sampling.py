"""Which samples a rank sees: endless, seeded, disjoint between ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from models.values import WorkloadError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """The part of a data set that one rank reads, in batches."""

    num_samples: int
    batch_size: int
    rank: int
    world: int
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise WorkloadError(f"rank {self.rank} is not in a world of {self.world}; ranks count from 0")
        if self.batch_size * self.world > self.num_samples:
            raise WorkloadError(
                f"batch_size {self.batch_size} on {self.world} ranks wants {self.batch_size * self.world} "
                f"samples per step, the data has {self.num_samples}; use a smaller batch (--batch-size), fewer ranks "
                "(--hosts) or more data"
            )


def index_batches(shard: Shard) -> Iterator[tuple[int, list[int]]]:
    """Endless (epoch, indices) of `shard`.

    Every epoch shuffles all samples by (seed, epoch) and deals them out, so in one epoch no sample
    is seen twice and every rank has the same number of batches; the incomplete rest is left out.
    """
    epoch = 0
    while True:
        generator = generator_for(shard.seed, epoch)
        order = torch.randperm(shard.num_samples, generator=generator)[shard.rank :: shard.world].tolist()
        num_batches = shard.num_samples // (shard.batch_size * shard.world)
        for start in range(0, num_batches * shard.batch_size, shard.batch_size):
            yield epoch, order[start : start + shard.batch_size]
        epoch += 1


def generator_for(*keys: int) -> torch.Generator:
    """A generator whose stream depends on all `keys`, each in [0, 2³¹)."""
    mixed = 0
    for key in keys:
        # Odd multiplier of SplitMix64: neighbouring keys land far apart.
        mixed = ((mixed ^ (key + 1)) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**63
    return torch.Generator().manual_seed(mixed)
