"""Stale synchronous parallel: a worker may be at most `staleness` clocks ahead of the slowest one.

Paper: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013. A worker
at clock c waits while c − min(clocks) > s. A read at clock c holds every update of clocks ≤ c − s − 1, the reader's
own, and whatever else has come. staleness=0 is BSP.

Differs from the paper: each update counts 1/P, as in `asp`. Servers answer a read when it is allowed, so a worker has
no cache of its own that could be older than what the rule asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot


@dataclass(frozen=True, slots=True)
class Ssp:
    card: ClassVar[Card] = Card(
        name="ssp",
        slot=Slot.CONSISTENCY,
        summary="a worker may be at most `staleness` clocks ahead of the slowest",
        paper="Ho et al., Stale Synchronous Parallel Parameter Server, NIPS 2013",
    )
    staleness: int = 3

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ValueError(f"staleness is {self.staleness}; use 0 (BSP) or more clocks")

    @property
    def is_synchronous(self) -> bool:
        """Only without staleness."""
        return self.staleness == 0

    def may_start(self, clocks: Sequence[int], own: int) -> bool:
        """While the worker is at most `staleness` clocks ahead of the slowest one."""
        return clocks[own] - min(clocks) <= self.staleness

    def must_include(self, clock: int) -> int:
        """All updates more than `staleness` clocks old."""
        return clock - self.staleness - 1

    def share(self, num_arrived: int, num_workers: int) -> float:
        """1/P of each update, however many have come."""
        return 1.0 / num_workers
