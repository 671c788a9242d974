"""Data parallelism: every device has all layers and takes an equal share of the batch; one all-reduce per step.

The null of pipelines and operator splits, and what everything else in this benchmark improves. Nothing overlaps here:
the cost is compute plus a ring all-reduce of all parameters. The rest of the benchmark says what overlap gains.
"""

from __future__ import annotations

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
        """One stage on all devices. Raises: ParallelismError if they do not divide a micro-batch."""
        if work.micro_batch_size % machine.num_devices:
            raise ParallelismError(
                f"{machine.num_devices} devices do not divide a micro-batch of {work.micro_batch_size} samples; use a "
                f"multiple of {machine.num_devices}"
            )
        compute_s = work.batch_size / machine.num_devices * sum(layer.forward_s + layer.backward_s for layer in layers)
        num_bytes = sum(layer.parameter_bytes for layer in layers)
        cost = compute_s + machine.all_reduce_s(num_bytes, machine.num_devices)
        return ParallelPlan(stages=(PlannedStage(0, len(layers), machine.num_devices),), cost=cost, unit="s")
