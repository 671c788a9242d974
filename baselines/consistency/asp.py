"""Asynchronous parallel: no worker ever waits for another one.

Paper: Recht et al., Hogwild!, NIPS 2011, and Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (Downpour
SGD), here through servers. An update computed on old parameters is added as it is; the record holds how old they were.

Differs from the papers: each update counts 1/P, so that P workers make as long a step as one batch P times as large.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot
from baselines.staleness import BoundedStaleness


@dataclass(frozen=True, slots=True)
class Asp(BoundedStaleness):
    card: ClassVar[Card] = Card(
        name="asp",
        slot=Slot.CONSISTENCY,
        summary="no worker waits; updates are added as they come",
        paper="Dean et al., Large Scale Distributed Deep Networks, NIPS 2012",
    )

    @property
    def staleness(self) -> None:
        """Any number."""
        return None
