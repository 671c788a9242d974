"""First in, first out: coflows in the order in which they began, as senders' queues serve them.

Also the order of coflow schedulers that do not preempt, which Varys (SIGCOMM 2014, section 7) is compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fabric.simulated.graph import Floats
from fabric.simulated.scheduling.fluid import Decision, UnderWay


@dataclass(frozen=True, slots=True)
class FirstInFirstOut:
    """Whose coflow began first goes first; flows of a coflow share."""

    name: ClassVar[str] = "fifo"

    def decide(self, under_way: UnderWay) -> Decision:
        return Decision(np.unique(under_way.began_s, return_inverse=True)[1])

    def next_change_s(self, under_way: UnderWay, rates_bps: Floats) -> float:
        return float("inf")
