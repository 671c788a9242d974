"""The bottleneck planner: the slowest stage as fast as it can be, by the rule of the virtual clock.

The dynamic programme of `pipedream-planner` with other costs. For layers 1 … j on m devices

    A(j, m) = min over i, m' of max( A(i, m−m'),  2·a_i / bandwidth,  T(i+1 … j, m') )
    T(i … j, m) = Σ compute / m  +  2(m−1)·Σ weights / (m · bandwidth)    per mini-batch

where a_i are the bytes of layer i's output. A(N, m) is the time per mini-batch of the full pipeline. The first case,
one stage for all layers, is data parallelism. All devices are used. A mini-batch is one micro-batch of the step, a
message also pays α, and replicas must divide the micro-batch.

Replicas here share every mini-batch in slices and sum its gradients after it, behind the computation. PipeDream's take
whole mini-batches in turn, so that one exchange serves m of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, ParallelismError
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare

_Best = tuple[float, tuple[PlannedStage, ...]]


@dataclass(frozen=True, slots=True)
class BottleneckPlanner:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="bottleneck-planner",
        summary="the slowest stage as fast as it can be, where replicas sum gradients after every mini-batch",
        paper="null",
    )

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """The stages whose slowest is fastest, on all devices. Raises: ParallelismError if no replicas divide the
        micro-batch."""
        best: dict[tuple[int, int], _Best] = {(0, 0): (0.0, ())}
        for stop in range(1, len(layers) + 1):
            for num_devices in range(1, machine.num_devices + 1):
                choices = []
                for first in range(stop):
                    for replicas in range(1, num_devices + 1):
                        before = best.get((first, num_devices - replicas))
                        if before is None or work.micro_batch_size % replicas:
                            continue
                        stage = PlannedStage(first, stop, replicas)
                        cost = max(before[0], stage_cost_s(stage, layers, machine, work))
                        choices.append((cost, (*before[1], stage)))
                if choices:
                    best[stop, num_devices] = min(choices, key=lambda choice: choice[0])
        found = best.get((len(layers), machine.num_devices))
        if found is None:
            raise ParallelismError(
                f"no stages of {len(layers)} layers use all of {machine.num_devices} devices with replicas that divide "
                f"{work.micro_batch_size} samples; use fewer devices or larger micro-batches"
            )
        return ParallelPlan(stages=found[1], cost=found[0], unit="s per micro-batch")


def stage_cost_s(stage: PlannedStage, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> float:
    """Seconds per micro-batch: the larger of a stage's computation and sum of gradients, one behind the other as the
    clock runs them, and of the messages in front of it."""
    own = layers[stage.first : stage.stop]
    compute_s = work.micro_batch_size * sum(layer.forward_s + layer.backward_s for layer in own)
    sync_s = machine.all_reduce_s(sum(layer.parameter_bytes for layer in own), stage.num_replicas)
    stage_s = compute_s / stage.num_replicas + sync_s  # a ring's time already: replicas do not share it once more
    if stage.first == 0:
        return stage_s
    return max(stage_s, 2 * machine.message_s(work.micro_batch_size * layers[stage.first - 1].output_bytes))
