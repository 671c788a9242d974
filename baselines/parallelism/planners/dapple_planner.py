"""DAPPLE's planner: stages and replicas with the least latency of a synchronous step.

Paper: Fan et al., DAPPLE, PPoPP 2021. Messages between stages count as stages of their own. With the pivot Q, the stage
with the least bubble, found from the last stage to the first (s becomes the pivot if its M−1 rounds outlast those of Q
and the passes in between), a step of M micro-batches takes

    L = Σ_{s ≤ Q} F_s  +  (M−1)(F_Q + B_Q)  +  max over s of ( AllReduce_s ± Σ B between s and Q )

with + Σ_{a=s…Q} B_a for s ≤ Q, and − Σ_{a=Q+1…s−1} B_a for s > Q, whose backwards end earlier: warm-up, steady phase,
tail.

Layers are first merged into at most `most_groups` neighbouring groups of about equal time; then all stages of groups
with all replicas that divide a micro-batch are tried. So the plan is the optimum of L up to that many layers.
Differs from the paper: it searches stage by stage with a dynamic programme and three rules for which hosts a stage
gets; all hosts are alike here. Plans with fewer devices than there are count too.
Not verified against the paper's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, require_positive
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare


@dataclass(frozen=True, slots=True)
class DapplePlanner:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="dapple-planner",
        summary="stages and replicas with the least latency of a synchronous step",
        paper="Fan et al., DAPPLE, PPoPP 2021",
    )
    most_groups: int = 10

    def __post_init__(self) -> None:
        require_positive(most_groups=self.most_groups)

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """The stages and replicas of least latency among all of at most `most_groups` groups of layers."""
        bounds = group_bounds([layer.forward_s + layer.backward_s for layer in layers], self.most_groups)
        replicas = [number for number in range(1, machine.num_devices + 1) if work.micro_batch_size % number == 0]
        plans = (
            (latency_s(stages, layers, machine, work), stages)
            for stages in _all_stages(bounds, replicas, machine.num_devices)
        )
        cost, stages = min(plans, key=lambda plan: plan[0])
        return ParallelPlan(stages=stages, cost=cost, unit="s")


def group_bounds(times_s: Sequence[float], most_groups: int) -> tuple[int, ...]:
    """Where groups of layers begin, and the end: the two lightest neighbours are merged until few enough are left."""
    bounds = list(range(len(times_s) + 1))
    while len(bounds) - 1 > most_groups:
        sums = [sum(times_s[bounds[place - 1] : bounds[place + 1]]) for place in range(1, len(bounds) - 1)]
        del bounds[1 + sums.index(min(sums))]
    return tuple(bounds)


def _all_stages(
    bounds: Sequence[int], replicas: Sequence[int], num_devices: int, first: int = 0
) -> Iterator[tuple[PlannedStage, ...]]:
    if first == len(bounds) - 1:
        yield ()
        return
    for number in replicas:
        if number > num_devices:
            break
        for stop in range(first + 1, len(bounds)):
            stage = PlannedStage(bounds[first], bounds[stop], number)
            for rest in _all_stages(bounds, replicas, num_devices - number, stop):
                yield (stage, *rest)


def latency_s(
    stages: Sequence[PlannedStage], layers: Sequence[PlannedLayer], machine: Machine, work: Workshare
) -> float:
    """L of a step."""
    forward_s, backward_s, all_reduce_s = [], [], []
    for index, stage in enumerate(stages):
        own = layers[stage.first : stage.stop]
        if index:
            behind = min(stage.num_replicas, stages[index - 1].num_replicas)
            crossing_s = machine.message_s(work.micro_batch_size * layers[stage.first - 1].output_bytes / behind)
            forward_s.append(crossing_s)
            backward_s.append(crossing_s)
            all_reduce_s.append(0.0)
        samples = work.micro_batch_size / stage.num_replicas
        forward_s.append(samples * sum(layer.forward_s for layer in own))
        backward_s.append(samples * sum(layer.backward_s for layer in own))
        all_reduce_s.append(machine.all_reduce_s(sum(layer.parameter_bytes for layer in own), stage.num_replicas))
    pivot = _pivot([f + b for f, b in zip(forward_s, backward_s, strict=True)], work.num_micro_batches)
    tail_s = max(
        all_reduce_s[place] + sum(backward_s[place : pivot + 1]) - sum(backward_s[pivot + 1 : place])
        for place in range(len(forward_s))
    )
    steady_s = (work.num_micro_batches - 1) * (forward_s[pivot] + backward_s[pivot])
    return sum(forward_s[: pivot + 1]) + steady_s + tail_s


def _pivot(round_s: Sequence[float], num_micro_batches: int) -> int:
    pivot = len(round_s) - 1
    for place in reversed(range(len(round_s) - 1)):
        between_s = sum(round_s[place + 1 : pivot])
        if (num_micro_batches - 1) * round_s[place] > (num_micro_batches - 1) * round_s[pivot] + between_s:
            pivot = place
    return pivot
