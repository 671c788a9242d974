"""Stale synchronous parallel: a worker may be at most `staleness` clocks ahead of the slowest one.

Paper: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013. A worker
at clock c waits while c − min(clocks) > s. A read at clock c holds every update of clocks ≤ c − s − 1, the reader's
own, and whatever else has come. staleness=0 is BSP.

Differs from the paper: each update counts 1/P, as in `asp`. Servers answer a read when it is allowed, so a worker has
no cache of its own that could be older than what the rule asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot
from baselines.staleness import BoundedStaleness, check_staleness


@dataclass(frozen=True, slots=True)
class Ssp(BoundedStaleness):
    card: ClassVar[Card] = Card(
        name="ssp",
        slot=Slot.CONSISTENCY,
        summary="a worker may be at most `staleness` clocks ahead of the slowest",
        paper="Ho et al., Stale Synchronous Parallel Parameter Server, NIPS 2013",
    )
    staleness: int = 3

    def __post_init__(self) -> None:
        check_staleness(self.staleness)
