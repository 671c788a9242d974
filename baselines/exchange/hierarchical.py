"""Hierarchical all-reduce: sums within a host first, a ring among the hosts' leaders, and back.

Source: two-level all-reduce as in Horovod (`HOROVOD_HIERARCHICAL_ALLREDUCE`) and Jia et al., Highly
Scalable Deep Learning Training System with Mixed-Precision, arXiv 1807.11205 (2018). Rank r is on
host r div k; rank 0 of a host leads it. With k ranks a host and H = P/k hosts:

1. k−1 rounds: the other ranks of a host send to the leader in turn, which adds them in order of rank;
2. 2(H−1) rounds: the leaders' ring (Patarasuk and Yuan, JPDC 2009), 2(H−1)/H·n elements each;
3. k−1 rounds: the leader sends the total to the ranks of its host in turn.

Between hosts 2(H−1)/H·n a *host* travels, where a flat ring sends as much on every edge but in
2(P−1) rounds. `ranks_per_host` must divide P; 1 is the plain ring. Sums only.

Differs from the papers: within a host whole messages move to and from the leader, not slices to all
ranks (Horovod reduce-scatters by NCCL, so every rank of a host takes part between hosts).
Not verified against the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Aggregated, Card, ExchangeRun, How, Slot, Transfer


@dataclass(frozen=True, slots=True)
class Hierarchical:
    card: ClassVar[Card] = Card(
        name="hierarchical",
        slot=Slot.EXCHANGE,
        summary="sums within a host, ring among hosts' leaders, and back (sums only)",
        paper="Jia et al., arXiv 1807.11205, 2018",
    )
    takes: ClassVar[frozenset[How]] = frozenset({How.SUM})
    ranks_per_host: int = 1

    def __post_init__(self) -> None:
        if self.ranks_per_host < 1:
            raise ValueError(f"ranks_per_host is {self.ranks_per_host}; use at least 1")

    def why_unfit(self, world: int) -> str | None:
        """The reason where hosts would have different numbers of ranks, else None."""
        if world % self.ranks_per_host:
            return f"ranks_per_host={self.ranks_per_host} does not divide {world} ranks; use a divisor of {world}"
        return None

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        """2(k−1) + 2(H−1) rounds of transfers, in which a rank that has nothing to do sits out. Raises: ValueError
        unless it is to sum, or if hosts are unequal."""
        if aggregate.how is not How.SUM:
            raise ValueError(
                "the exchange 'hierarchical' sums; use 'all-reduce' or 'all-gather' for payloads that cannot be summed"
            )
        if reason := self.why_unfit(world):
            raise ValueError(f"hierarchical: {reason}")
        (tensor,) = aggregate.payload
        leader = rank - rank % self.ranks_per_host
        others = range(leader + 1, leader + self.ranks_per_host)
        arrived = torch.empty_like(tensor) if rank == leader and others else tensor
        for other in others:
            if rank == leader:
                yield Transfer(into=arrived, source=other)
                tensor.add_(arrived)
            else:
                yield Transfer(send=tensor, to=leader) if rank == other else Transfer()
        yield from self._ring(tensor, rank, world) if rank == leader else self._sit_out(world)
        for other in others:
            if rank == leader:
                yield Transfer(send=tensor, to=other)
            else:
                yield Transfer(into=tensor, source=leader) if rank == other else Transfer()
        return Aggregated(((tensor,),))

    def _sit_out(self, world: int) -> ExchangeRun:
        for _ in range(2 * (world // self.ranks_per_host - 1)):
            yield Transfer()
        return Aggregated(())

    def _ring(self, tensor: Tensor, rank: int, world: int) -> ExchangeRun:
        """The leaders' ring: reduce-scatter, then all-gather; sums `tensor` in place."""
        size, num_hosts, host = self.ranks_per_host, world // self.ranks_per_host, rank // self.ranks_per_host
        flat = tensor.view(-1)
        padded = torch.nn.functional.pad(flat, (0, -flat.numel() % num_hosts))
        chunks = list(padded.chunk(num_hosts))
        arrived = torch.empty_like(chunks[0])
        after, before = (rank + size) % world, (rank - size) % world
        for step in range(num_hosts - 1):
            yield Transfer(chunks[(host - step) % num_hosts], after, arrived, before)
            chunks[(host - step - 1) % num_hosts].add_(arrived)
        for step in range(num_hosts - 1):
            yield Transfer(chunks[(host + 1 - step) % num_hosts], after, chunks[(host - step) % num_hosts], before)
        flat.copy_(padded[: flat.numel()])
        return Aggregated(((tensor,),))
