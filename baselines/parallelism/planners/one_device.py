"""One device: the null of all planners. No message, no bubble, all of the memory on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare


@dataclass(frozen=True, slots=True)
class OneDevice:
    card: ClassVar[ParallelCard] = ParallelCard(name="one-device", summary="everything on one device", paper="null")

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """One stage of all layers on one device; the cost is its compute alone."""
        cost = work.batch_size * sum(layer.forward_s + layer.backward_s for layer in layers)
        return ParallelPlan(stages=(PlannedStage(0, len(layers)),), cost=cost, unit="s")
