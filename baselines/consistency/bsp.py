"""Bulk synchronous parallel: every worker waits for every other one at the end of each step.

Paper: Valiant, A bridging model for parallel computation, CACM 1990. A read at clock c holds all updates of clocks
below c and no other. The reference of every other method; equal to SSP with staleness 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot


@dataclass(frozen=True, slots=True)
class Bsp:
    card: ClassVar[Card] = Card(
        name="bsp",
        slot=Slot.CONSISTENCY,
        summary="all workers wait for each other at every step",
        paper="Valiant, A bridging model for parallel computation, CACM 1990",
    )

    @property
    def is_synchronous(self) -> bool:
        """True: all workers read the same version."""
        return True

    def may_start(self, clocks: Sequence[int], own: int) -> bool:
        """When the slowest worker has finished the clock before."""
        return min(clocks) >= clocks[own]

    def must_include(self, clock: int) -> int:
        """All updates of the clock before."""
        return clock - 1

    def share(self, num_arrived: int, num_workers: int) -> float:
        """1/P of each update."""
        return 1.0 / num_workers
