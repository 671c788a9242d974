"""Training priorities in the network: a gradient's flows are served in the order in which the next step needs them.

What P3 (Jayarajan et al., MLSys 2019) and ByteScheduler (Peng et al., SOSP 2019) do in the sender's queue is carried
into the network here: `priority` of a flow is its rank on every link, so that first layers overtake last ones also
between different senders. The network sees a number and knows nothing of layers.

With `levels` below the number of priorities, as switches have eight queues, neighbours share a level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fabric.simulated.graph import Floats, NetworkError
from fabric.simulated.scheduling.fluid import Decision, UnderWay


@dataclass(frozen=True, slots=True)
class TrainingPriorities:
    """Lower `priority` first; `num_priorities` of them are mapped evenly to `levels`."""

    name: ClassVar[str] = "training"
    num_priorities: int
    levels: int = 8

    def __post_init__(self) -> None:
        if self.levels < 1 or self.num_priorities < 1:
            raise NetworkError(f"{self.num_priorities} priorities on {self.levels} levels order nothing; use 1 or more")

    def decide(self, under_way: UnderWay) -> Decision:
        return Decision(under_way.priority * min(self.levels, self.num_priorities) // self.num_priorities)

    def next_change_s(self, under_way: UnderWay, rates_bps: Floats) -> float:
        return float("inf")
