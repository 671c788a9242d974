"""Asynchronous parallel: no worker ever waits for another one.

Paper: Recht et al., Hogwild!, NIPS 2011, and Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (Downpour
SGD), here through servers. An update computed on old parameters is added as it is; the record holds how old they were.

Differs from the papers: each update counts 1/P, so that P workers make as long a step as one batch P times as large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot


@dataclass(frozen=True, slots=True)
class Asp:
    card: ClassVar[Card] = Card(
        name="asp",
        slot=Slot.CONSISTENCY,
        summary="no worker waits; updates are added as they come",
        paper="Dean et al., Large Scale Distributed Deep Networks, NIPS 2012",
    )

    @property
    def is_synchronous(self) -> bool:
        """False: updates are computed on parameters of different ages."""
        return False

    def may_start(self, clocks: Sequence[int], own: int) -> bool:
        """Always."""
        return True

    def must_include(self, clock: int) -> int:
        """No update at all."""
        return -1

    def share(self, num_arrived: int, num_workers: int) -> float:
        """1/P of each update, however many have come."""
        return 1.0 / num_workers
