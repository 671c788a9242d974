"""Fair sharing: one rank for all, which is what ideal congestion control gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fabric.simulated.graph import Floats
from fabric.simulated.scheduling.fluid import Decision, UnderWay


@dataclass(frozen=True, slots=True)
class FairSharing:
    """Everybody has the same rank."""

    name: ClassVar[str] = "fair"

    def decide(self, under_way: UnderWay) -> Decision:
        return Decision(np.zeros(len(under_way.flows), np.int64))

    def next_change_s(self, under_way: UnderWay, rates_bps: Floats) -> float:
        return float("inf")
