"""Bulk synchronous parallel: every worker waits for every other one at the end of each step.

Paper: Valiant, A bridging model for parallel computation, CACM 1990. A read at clock c holds all updates of clocks
below c and no other. The reference of every other method; equal to SSP with staleness 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot
from baselines.staleness import BoundedStaleness


@dataclass(frozen=True, slots=True)
class Bsp(BoundedStaleness):
    card: ClassVar[Card] = Card(
        name="bsp",
        slot=Slot.CONSISTENCY,
        summary="all workers wait for each other at every step",
        paper="Valiant, A bridging model for parallel computation, CACM 1990",
    )

    @property
    def staleness(self) -> int:
        """No clock at all."""
        return 0
