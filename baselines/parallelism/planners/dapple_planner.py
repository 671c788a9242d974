"""DAPPLE's planner: stages and replicas with the least latency of a synchronous step.

Paper: Fan et al., DAPPLE, PPoPP 2021. Messages between stages count as stages of their own. With the pivot Q, the stage
with the least bubble, found from the last stage to the first (s becomes the pivot if its M−1 rounds outlast those of Q
and the passes in between), a step of M micro-batches takes

    L = Σ_{s ≤ Q} F_s  +  (M−1)(F_Q + B_Q)  +  max over s of ( AllReduce_s ± Σ B between s and Q )

with + Σ_{a=s…Q} B_a for s ≤ Q, and − Σ_{a=Q+1…s−1} B_a for s > Q, whose backwards end earlier: warm-up, steady phase,
tail.

Layers are first merged into at most `most_groups` neighbouring groups of about equal time; the plan is the optimum of L
over all stages of groups and all replicas that divide a micro-batch, found from the last stage to the first. What a
later stage adds to L depends on three numbers of the stages behind it (`_End`) and grows with each of them, so of
two ends of a pipeline that begin alike, one that is no better in any of them and in devices is left out.
Differs from the paper: it searches stage by stage with a dynamic programme and three rules for which hosts a stage
gets; all hosts are alike here. Plans with fewer devices than there are count too.
L counts the sum of gradients after backward, so its plan may take longer than data parallelism that overlaps the two,
or than one device on a slow network: `plan-parallel` shows those beside it.
Not verified against the paper's text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from baselines.parallelism.api import ParallelCard, require_positive
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare

_ABOUT = 1 + 1e-12  # what sums in another order may differ by


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
        stages = _Search(layers, machine, work, bounds, replicas).least()
        cost = latency_s(stages, layers, machine, work)
        return ParallelPlan(stages=stages, cost=cost, unit="s")


def group_bounds(times_s: Sequence[float], most_groups: int) -> tuple[int, ...]:
    """Where groups of layers begin, and the end: the two lightest neighbours are merged until few enough are left."""
    bounds = list(range(len(times_s) + 1))
    while len(bounds) - 1 > most_groups:
        sums = [sum(times_s[bounds[place - 1] : bounds[place + 1]]) for place in range(1, len(bounds) - 1)]
        del bounds[1 + sums.index(min(sums))]
    return tuple(bounds)


class _Part(NamedTuple):
    """A stage, or the message between two: seconds of a pass each way, and of the sum of its gradients."""

    forward_s: float
    backward_s: float
    sum_s: float = 0.0
    num_devices: int = 0


class _End(NamedTuple):
    """The stages from some layer to the last one: the devices that they take, and what their latency comes to.

    `change_s` is (M−1)(F_Q + B_Q) and the rounds between the first of them and the pivot: what a stage in front has to
    outlast. `through_s` is that and the pivot's own round, `tail_s` the time from the first one's last backward to the
    end of all sums of gradients.
    """

    num_devices: int
    change_s: float
    through_s: float
    tail_s: float

    @property
    def latency_s(self) -> float:
        """L if nothing is in front."""
        return self.through_s + self.tail_s

    def behind(self, part: _Part, num_micro_batches: int) -> _End:
        """The same with a part in front, which becomes the pivot if its rounds outlast the others."""
        round_s = part.forward_s + part.backward_s
        change_s, through_s = self.change_s + round_s, self.through_s + round_s
        if (num_micro_batches - 1) * round_s > self.change_s:
            change_s, through_s = (num_micro_batches - 1) * round_s, num_micro_batches * round_s
        tail_s = max(part.sum_s, self.tail_s - part.backward_s)
        return _End(self.num_devices + part.num_devices, change_s, through_s, tail_s)


_Ends = dict[tuple[int, int], list[_End]]  # by first layer and its replicas
_NOTHING = _End(0, -1.0, 0.0, -math.inf)  # any part in front becomes the pivot


@dataclass(frozen=True, slots=True)
class _Search:
    """All stages between `bounds` with all `replicas`, on the machine's devices at most."""

    layers: Sequence[PlannedLayer]
    machine: Machine
    work: Workshare
    bounds: Sequence[int]
    replicas: Sequence[int]

    def least(self) -> tuple[PlannedStage, ...]:
        """Those of least L; of those that differ from it by rounding, early stages with few replicas, then layers."""
        whole = (PlannedStage(0, self.bounds[-1], number) for number in self.replicas)
        limit_s = _ABOUT * min(latency_s((stage,), self.layers, self.machine, self.work) for stage in whole)
        ends: _Ends = {}
        for place in reversed(self.bounds[:-1]):
            for number in self.replicas:
                found = (end for stage in self._stages(place, [number]) for end in self._starting(stage, ends))
                ends[place, number] = _not_worse([end for end in found if end.through_s <= limit_s])
        limit_s = _ABOUT * min(end.latency_s for number in self.replicas for end in ends[0, number])
        stages: list[PlannedStage] = []
        place = 0
        while place < self.bounds[-1]:
            options = self._stages(place, self.replicas)
            stages.append(next(stage for stage in options if self._can_go_on((*stages, stage), ends, limit_s)))
            place = stages[-1].stop
        return tuple(stages)

    def _stages(self, place: int, replicas: Sequence[int]) -> Iterator[PlannedStage]:
        """All that begin with layer `place`."""
        stops = [stop for stop in self.bounds if stop > place]
        return (PlannedStage(place, stop, number) for number in replicas for stop in stops)

    def _starting(self, stage: PlannedStage, ends: _Ends) -> Iterator[_End]:
        """The stage with each of `ends` behind it for which there are devices."""
        own = _part_of(stage, self.layers, self.machine, self.work)
        if stage.stop == self.bounds[-1]:
            yield self._behind(_NOTHING, own)
            return
        for number in self.replicas:
            crossing = _crossing(stage.stop, min(stage.num_replicas, number), self.layers, self.machine, self.work)
            for end in ends[stage.stop, number]:
                if stage.num_replicas + end.num_devices <= self.machine.num_devices:
                    yield self._behind(end, crossing, own)

    def _can_go_on(self, stages: Sequence[PlannedStage], ends: _Ends, limit_s: float) -> bool:
        """Whether a pipeline of at most `limit_s` begins with these stages."""
        front = _parts_of(stages, self.layers, self.machine, self.work)[:-1]
        found = (self._behind(end, *reversed(front)) for end in self._starting(stages[-1], ends))
        return any(end.latency_s <= limit_s and end.num_devices <= self.machine.num_devices for end in found)

    def _behind(self, end: _End, *parts: _Part) -> _End:
        for part in parts:
            end = end.behind(part, self.work.num_micro_batches)
        return end


def _not_worse(ends: Sequence[_End]) -> list[_End]:
    """Without those that another one equals or betters in everything."""
    kept: list[_End] = []
    for end in sorted(ends):
        _, change_s, through_s, tail_s = end
        if not any(
            other.change_s <= change_s and other.through_s <= through_s and other.tail_s <= tail_s for other in kept
        ):
            kept.append(end)
    return kept


def _part_of(stage: PlannedStage, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> _Part:
    own = layers[stage.first : stage.stop]
    samples = work.micro_batch_size / stage.num_replicas
    return _Part(
        samples * sum(layer.forward_s for layer in own),
        samples * sum(layer.backward_s for layer in own),
        machine.all_reduce_s(sum(layer.parameter_bytes for layer in own), stage.num_replicas),
        stage.num_replicas,
    )


def _crossing(
    place: int, num_replicas: int, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare
) -> _Part:
    """The message in front of layer `place`, to or from the fewer of both sides' replicas."""
    crossing_s = machine.message_s(work.micro_batch_size * layers[place - 1].output_bytes / num_replicas)
    return _Part(crossing_s, crossing_s)


def _parts_of(
    stages: Sequence[PlannedStage], layers: Sequence[PlannedLayer], machine: Machine, work: Workshare
) -> list[_Part]:
    """The stages and the messages between them, in order."""
    parts = []
    for index, stage in enumerate(stages):
        if index:
            behind = min(stage.num_replicas, stages[index - 1].num_replicas)
            parts.append(_crossing(stage.first, behind, layers, machine, work))
        parts.append(_part_of(stage, layers, machine, work))
    return parts


def latency_s(
    stages: Sequence[PlannedStage], layers: Sequence[PlannedLayer], machine: Machine, work: Workshare
) -> float:
    """L of a step."""
    parts = _parts_of(stages, layers, machine, work)
    forward_s = [part.forward_s for part in parts]
    backward_s = [part.backward_s for part in parts]
    all_reduce_s = [part.sum_s for part in parts]
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
