"""Exhaustive search over a configuration per layer: FlexFlow's space without its chance, for small graphs.

All combinations are simulated one by one. It is the measure of `flexflow`, and refuses graphs with more than
`most_plans` combinations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, ParallelismError
from baselines.parallelism.operator_costs import configs_of, total_s
from baselines.parallelism.planners.flexflow import plan_of
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, Workshare


@dataclass(frozen=True, slots=True)
class Exhaustive:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="exhaustive", summary="every configuration of every layer, for small graphs", paper="null"
    )
    most_plans: int = 200_000

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """The configuration of least step time. Raises: ParallelismError for more than `most_plans` of them."""
        choices = [configs_of(layer, machine.num_devices, work) for layer in layers]
        num_plans = math.prod(len(options) for options in choices)
        if num_plans > self.most_plans:
            raise ParallelismError(
                f"{num_plans:.3g} plans for {len(layers)} layers on {machine.num_devices} devices, more than "
                f"{self.most_plans:,}; use fewer devices, or flexflow"
            )
        best = min(itertools.product(*choices), key=lambda configs: total_s(layers, configs, machine, work))
        return plan_of(best, total_s(layers, best, machine, work), machine)
