"""PipeDream's planner: the slowest stage as fast as it can be, stages replicated where that helps.

Paper: Narayanan et al., PipeDream, SOSP 2019, section 3.1. For layers 1 … j on m devices

    A(j, m) = min over i, m' of max( A(i, m−m'),  2·a_i / bandwidth,  T(i+1 … j, m') )
    T(i … j, m) = Σ compute / m  +  2(m−1)·Σ weights / (m · bandwidth)    per mini-batch

where a_i are the bytes of layer i's output. A(N, m) is the time per mini-batch of the full pipeline. The first case,
one stage for all layers, is data parallelism. All devices are used, as in the paper.

Here a mini-batch is one micro-batch of the step, and a message also pays α.
Differs from the paper: replicas must divide the micro-batch, because each takes a slice of it, and after every
mini-batch its gradients are summed, behind the computation and not beside it. So T is the sum of both, the sum of
gradients in full. The paper's replicas take whole mini-batches in turn and overlap the two: its T is
max( Σ compute, 2(m−1)·Σ weights / bandwidth ) / m. Its authors' code adds them as here, but takes both over m, as one
exchange serves m mini-batches, and a_i's time over m' too. One level of network, where the paper repeats the programme
over the levels of a hierarchy. Read against the authors' code, not verified against the paper's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, ParallelismError
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare

_Best = tuple[float, tuple[PlannedStage, ...]]


@dataclass(frozen=True, slots=True)
class PipeDreamPlanner:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="pipedream-planner",
        summary="dynamic programme over stages and replicas: the slowest stage as fast as it can be",
        paper="Narayanan et al., PipeDream, SOSP 2019",
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
