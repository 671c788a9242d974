"""All-gather: every rank collects all payloads and combines them itself, in order of rank.

The sum is then the same on every rank and for every packing, bit for bit, at (P−1)·n elements a
rank instead of the ring's 2(P−1)/P·n: equal for 2 ranks, P/2 times as much beyond. It pays where
start-up time dominates (P−1 steps instead of 2(P−1)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import Aggregate, Aggregated, AllGather, Card, ExchangeRun, How, Slot, as_bytes, from_bytes


@dataclass(frozen=True, slots=True)
class AllGatherSum:
    card: ClassVar[Card] = Card(
        name="all-gather",
        slot=Slot.EXCHANGE,
        summary="every rank gathers all payloads and sums in order of rank",
        paper="Thakur et al., IJHPCA 2005 (collective algorithms)",
    )
    takes: ClassVar[frozenset[How]] = frozenset({How.SUM, How.CONCAT})

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        """One all-gather, after one of sizes (8 bytes per rank) where they may differ; sums are taken in order of
        rank."""
        data = as_bytes(aggregate.payload)
        sizes = [data.numel()] * world
        if aggregate.how is not How.SUM and not aggregate.equal_sizes:
            header = torch.tensor([data.numel()], dtype=torch.int64, device=data.device)
            sizes = [int(size) for size in (yield AllGather(header))]
        gathered = yield AllGather(torch.nn.functional.pad(data, (0, max(sizes) - data.numel())))
        parts = tuple(from_bytes(part[:size], aggregate.payload) for part, size in zip(gathered, sizes, strict=True))
        if aggregate.how is How.CONCAT:
            return Aggregated(parts)
        total = parts[0][0]
        for (part,) in parts[1:]:
            total = total.add_(part)
        return Aggregated(((total,),))
