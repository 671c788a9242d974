"""Binomial tree: sums climb to rank 0, and the total comes down the same way.

Paper: Thakur, Rabenseifner and Gropp, IJHPCA 2005 (binomial-tree reduce and broadcast). In round k
of the way up (k = 0 … ⌈log₂ P⌉−1) rank r with r ≡ 2ᵏ (mod 2ᵏ⁺¹) sends its sum to rank r−2ᵏ, which
adds it; on the way down the rounds run backwards and the arrows are turned. 2⌈log₂ P⌉ rounds; all
ranks together send 2(P−1)·n elements, and the busiest one ⌈log₂ P⌉·n each way, against the ring's
2(P−1)/P·n: it pays where start-up time dominates. Any P. Sums only.

MERGE combines by the compressor's own rule instead of a sum, rank r's payload first and what arrives second.

Differs from the paper: whole messages move, without pipelining in segments.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import Aggregate, Aggregated, Card, ExchangeRun, How, Payload, Slot, Transfer

Transfers = Generator[Transfer, Payload, None]


@dataclass(frozen=True, slots=True)
class Tree:
    card: ClassVar[Card] = Card(
        name="tree",
        slot=Slot.EXCHANGE,
        summary="binomial tree to rank 0 and back in 2⌈log₂ P⌉ rounds",
        paper="Thakur et al., IJHPCA 2005 (collective algorithms)",
    )
    takes: ClassVar[frozenset[How]] = frozenset({How.SUM, How.MERGE})

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        """2⌈log₂ P⌉ rounds of transfers, in which a rank that has nothing to do sits out. Raises: ValueError unless
        it is to sum or merge."""
        if aggregate.how not in self.takes:
            raise ValueError("the exchange 'tree' sums or merges; use 'all-reduce' or 'all-gather' to collect payloads")
        own = aggregate.payload
        distances = [2**k for k in range((world - 1).bit_length())]
        arrived = tuple(torch.empty_like(part) for part in own)
        for distance in distances:
            if rank % (2 * distance) == distance:
                yield from _send(own, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < world:
                yield from _receive(arrived, rank + distance)
                own = _combine(aggregate, own, arrived)
            else:
                yield from _wait(own)
        for distance in reversed(distances):
            if rank % (2 * distance) == distance:
                yield from _receive(own, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < world:
                yield from _send(own, rank + distance)
            else:
                yield from _wait(own)
        return Aggregated((own,))


def _combine(aggregate: Aggregate, own: Payload, arrived: Payload) -> Payload:
    if aggregate.merge is not None:
        return aggregate.merge(own, arrived)
    own[0].add_(arrived[0])
    return own


def _send(payload: Payload, to: int) -> Transfers:
    for part in payload:
        yield Transfer(send=part, to=to)


def _receive(payload: Payload, source: int) -> Transfers:
    for part in payload:
        yield Transfer(into=part, source=source)


def _wait(payload: Payload) -> Transfers:
    for _ in payload:
        yield Transfer()
