"""Binomial tree: sums climb to rank 0, and the total comes down the same way.

Paper: Thakur, Rabenseifner and Gropp, IJHPCA 2005 (binomial-tree reduce and broadcast). In round k
of the way up (k = 0 … ⌈log₂ P⌉−1) rank r with r ≡ 2ᵏ (mod 2ᵏ⁺¹) sends its sum to rank r−2ᵏ, which
adds it; on the way down the rounds run backwards and the arrows are turned. 2⌈log₂ P⌉ rounds; all
ranks together send 2(P−1)·n elements, and the busiest one ⌈log₂ P⌉·n each way, against the ring's
2(P−1)/P·n: it pays where start-up time dominates. Any P. Sums only.

Differs from the paper: whole messages move, without pipelining in segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import Aggregate, Aggregated, Card, ExchangeRun, How, Slot, Transfer


@dataclass(frozen=True, slots=True)
class Tree:
    card: ClassVar[Card] = Card(
        name="tree",
        slot=Slot.EXCHANGE,
        summary="binomial tree to rank 0 and back in 2⌈log₂ P⌉ rounds (sums only)",
        paper="Thakur et al., IJHPCA 2005 (collective algorithms)",
    )
    sums_only: ClassVar[bool] = True

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        if aggregate.how is not How.SUM:
            raise ValueError(
                "the exchange 'tree' sums; use 'all-reduce' or 'all-gather' for payloads that cannot be summed"
            )
        (tensor,) = aggregate.payload
        distances = [2**k for k in range((world - 1).bit_length())]
        arrived = torch.empty_like(tensor)
        for distance in distances:
            if rank % (2 * distance) == distance:
                yield Transfer(send=tensor, to=rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < world:
                yield Transfer(into=arrived, source=rank + distance)
                tensor.add_(arrived)
            else:
                yield Transfer()
        for distance in reversed(distances):
            if rank % (2 * distance) == distance:
                yield Transfer(into=tensor, source=rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < world:
                yield Transfer(send=tensor, to=rank + distance)
            else:
                yield Transfer()
        return Aggregated(((tensor,),))
