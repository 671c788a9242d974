"""Data parallelism: every device has all layers and takes an equal share of the batch; one all-reduce per step.

The null of pipelines and operator splits, and what everything else in this benchmark improves. Nothing overlaps in the
planner's own cost: compute plus a ring all-reduce of all parameters. `plan-parallel` shows the step that
`predict` has for it, with overlap. A pipeline's micro-batches play no part: a device takes its share of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, ParallelismError
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare


@dataclass(frozen=True, slots=True)
class DataParallel:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="data-parallel", summary="all layers on every device, an equal share of the batch each", paper="null"
    )

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """One stage on all devices. Raises: ParallelismError if one would have no sample."""
        if work.batch_size < machine.num_devices:
            raise ParallelismError(
                f"{machine.num_devices} devices for a batch of {work.batch_size} samples; use at most {work.batch_size}"
            )
        compute_s = math.ceil(work.batch_size / machine.num_devices) * sum(
            layer.forward_s + layer.backward_s for layer in layers
        )
        num_bytes = sum(layer.parameter_bytes for layer in layers)
        cost = compute_s + machine.all_reduce_s(num_bytes, machine.num_devices)
        return ParallelPlan(stages=(PlannedStage(0, len(layers), machine.num_devices),), cost=cost, unit="s")
