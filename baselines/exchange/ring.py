"""Ring all-reduce written out: reduce-scatter, then all-gather, one neighbour at a time.

Paper: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms, JPDC 2009. The tensor is cut
into P chunks. In step s of the reduce-scatter rank r sends chunk (r−s) mod P to rank r+1 and adds
what arrives from rank r−1; after P−1 steps it owns the sum of chunk r+1, which goes round in P−1
steps more. 2(P−1) steps, 2(P−1)/P·n elements per rank (chunks padded to equal size).

It is what `all-reduce` leaves to the library, here as visible steps: for counting, and for
back-ends without a ring of their own. Sums only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Aggregated, Card, ExchangeRun, How, Slot, Transfer


@dataclass(frozen=True, slots=True)
class Ring:
    card: ClassVar[Card] = Card(
        name="ring",
        slot=Slot.EXCHANGE,
        summary="ring all-reduce as 2(P−1) visible neighbour steps (sums only)",
        paper="Patarasuk and Yuan, JPDC 2009",
    )
    takes: ClassVar[frozenset[How]] = frozenset({How.SUM})

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        """2(P−1) rounds of transfers to the next rank. Raises: ValueError unless it is to sum."""
        if aggregate.how is not How.SUM:
            raise ValueError(
                "the exchange 'ring' sums; use 'all-reduce' or 'all-gather' for payloads that cannot be summed"
            )
        (tensor,) = aggregate.payload
        flat = tensor.view(-1)
        padded = torch.nn.functional.pad(flat, (0, -flat.numel() % world))
        chunks = list(padded.chunk(world))
        arrived = torch.empty_like(chunks[0])

        def shift(sent: Tensor, into: Tensor) -> Transfer:
            return Transfer(sent, (rank + 1) % world, into, (rank - 1) % world)

        for step in range(world - 1):
            yield shift(chunks[(rank - step) % world], arrived)
            chunks[(rank - step - 1) % world].add_(arrived)
        for step in range(world - 1):
            yield shift(chunks[(rank + 1 - step) % world], chunks[(rank - step) % world])
        flat.copy_(padded[: flat.numel()])
        return Aggregated(((tensor,),))
