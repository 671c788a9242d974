"""PIAS: flows start in the best priority and are demoted as they send; nobody need know their sizes.

Paper: Bai et al., Information-Agnostic Flow Scheduling for Commodity Data Centers, NSDI 2015, section 4. A flow that
has sent more than threshold i is in priority i. Inside a priority flows share fairly (DCTCP).

Differs from the paper: thresholds are parameters (defaults for eight queues, spaced by factors of four), not the
solution of its optimisation for a known distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fabric.simulated.graph import Floats, NetworkError
from fabric.simulated.scheduling.fluid import BITS, Decision, UnderWay

ROUNDING_BITS = 1e-3


@dataclass(frozen=True, slots=True)
class Pias:
    """`thresholds` in bytes, rising; one queue more than there are thresholds."""

    name: ClassVar[str] = "pias"
    thresholds: tuple[float, ...] = (10e3, 40e3, 160e3, 640e3, 2.56e6, 10.24e6, 40.96e6)

    def __post_init__(self) -> None:
        if not self.thresholds or list(self.thresholds) != sorted(set(self.thresholds)) or self.thresholds[0] <= 0:
            raise NetworkError(f"thresholds {self.thresholds} do not rise from above 0; use e.g. (1e4, 1e5, 1e6)")

    def decide(self, under_way: UnderWay) -> Decision:
        return Decision(np.searchsorted(self._bits, under_way.sent_bits + ROUNDING_BITS, side="right"))

    def next_change_s(self, under_way: UnderWay, rates_bps: Floats) -> float:
        queue = np.searchsorted(self._bits, under_way.sent_bits + ROUNDING_BITS, side="right")
        due = (queue < len(self.thresholds)) & (rates_bps > 0.0)
        ahead = self._bits[np.minimum(queue, len(self.thresholds) - 1)][due] - under_way.sent_bits[due]
        return float(np.min(ahead / rates_bps[due], initial=np.inf))

    @property
    def _bits(self) -> Floats:
        return np.asarray(self.thresholds) * BITS
