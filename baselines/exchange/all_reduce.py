"""All-reduce: sums by the library's ring, everything else by all-gather.

Ring all-reduce (Patarasuk and Yuan, JPDC 2009): reduce-scatter and all-gather, 2(P−1) steps in
which a rank sends 2(P−1)/P · n elements. Payloads that cannot be summed on the way are gathered:
P−1 payloads a rank, after a size header of 8 bytes where sizes may differ over ranks. What is scattered goes all to
all, every rank being a server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import (
    NUMBERS,
    Aggregate,
    Aggregated,
    AllGather,
    AllReduce,
    Card,
    ExchangeRun,
    How,
    Slot,
    as_bytes,
    from_bytes,
)
from baselines.codec import scattered


@dataclass(frozen=True, slots=True)
class RingAllReduce:
    card: ClassVar[Card] = Card(
        name="all-reduce",
        slot=Slot.EXCHANGE,
        summary="ring all-reduce; all-gather or all-to-all for what cannot be summed",
        paper="Patarasuk and Yuan, JPDC 2009",
        dtypes=NUMBERS,
    )
    takes: ClassVar[frozenset[How]] = frozenset({How.SUM, How.CONCAT, How.SCATTER})

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        """One all-reduce for SUM, an all-to-all each way for SCATTER; everything else is gathered, sizes first where
        they may differ."""
        if aggregate.how is How.SUM:
            (tensor,) = aggregate.payload
            return Aggregated((((yield AllReduce(tensor))[0],),))
        if aggregate.how is How.SCATTER:
            return (yield from scattered(aggregate, rank, world, world))
        data = as_bytes(aggregate.payload)
        sizes = [data.numel()] * world
        if not aggregate.equal_sizes:
            header = torch.tensor([data.numel()], dtype=torch.int64, device=data.device)
            sizes = [int(size) for size in (yield AllGather(header))]
        padded = torch.nn.functional.pad(data, (0, max(sizes) - data.numel()))
        gathered = yield AllGather(padded)
        parts = zip(gathered, sizes, strict=True)
        return Aggregated(tuple(from_bytes(part[:size], aggregate.payload) for part, size in parts))
