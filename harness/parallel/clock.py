"""A pipeline's program on a virtual clock: when each pass runs, what waits, and what each rank holds.

A rank does one thing at a time. What it sends leaves in order over its own outgoing link, which is busy for β·n, and
arrives α later; receiving costs nothing but the wait. Replicas of a stage are alike, so one stands for all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baselines.parallelism.api import Backward, Forward, ParallelismError, Recompute, Update
from baselines.parallelism.plans import Machine, PlannedLayer, PlannedStage, Workshare
from baselines.parallelism.programs import Crossing, Instruction, PipelineProgram, Receive, Send, peak_versions


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCosts:
    """What one replica of a stage costs per micro-batch: seconds, and bytes held.

    `input_bytes` is a micro-batch's input, held in any case until its backward; `saved_bytes` what backward needs
    besides; `output_bytes` what crosses to the next stage, over one pair of replicas. `update_s` is the all-reduce
    among replicas and the optimizer's step, `sum_bytes` what a replica sends for the former.
    """

    forward_s: float
    backward_s: float
    update_s: float = 0.0
    input_bytes: int = 0
    saved_bytes: int = 0
    output_bytes: int = 0
    weight_bytes: int = 0
    sum_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class TimedInstruction:
    """An instruction of a rank from `start_s` to `end_s`; a receive lasts as long as the rank waits for it."""

    rank: int
    instruction: Instruction
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimeline:
    """What a program came to. Per rank: `busy_s` of its passes and updates, and the most bytes that it held."""

    spans: tuple[TimedInstruction, ...]
    step_s: float
    busy_s: tuple[float, ...]
    peak_bytes: tuple[int, ...]

    @property
    def bubble(self) -> float:
        """The idle share of all ranks' time."""
        return 1.0 - sum(self.busy_s) / (self.step_s * len(self.busy_s)) if self.step_s > 0 else 0.0


def no_delay(crossing: Crossing) -> float:
    """Messages take what the link takes."""
    return 0.0


def run_on_clock(
    program: PipelineProgram,
    stages: Sequence[StageCosts],
    machine: Machine,
    delay_s: Callable[[Crossing], float] = no_delay,
) -> PipelineTimeline:
    """Run every instruction. `delay_s` adds to a message's time; messages may then overtake each other.

    Raises: ParallelismError if the costs are not those of the program's stages, or ranks wait for ever.
    """
    if len(stages) != program.num_stages:
        raise ParallelismError(f"costs of {len(stages)} stages for {program.num_stages}; give one for each stage")
    clock = _PipelineClock(program, tuple(stages), machine, delay_s)
    while clock.advance():
        pass
    return clock.finished()


class _PipelineClock:
    def __init__(
        self,
        program: PipelineProgram,
        stages: tuple[StageCosts, ...],
        machine: Machine,
        delay_s: Callable[[Crossing], float],
    ) -> None:
        self._program, self._stages, self._machine, self._delay_s = program, stages, machine, delay_s
        self._now_s = [0.0] * program.num_ranks
        self._link_free_s = [0.0] * program.num_ranks
        self._places = [0] * program.num_ranks
        self._arrives_s: dict[Crossing, float] = {}
        self._busy_s = [0.0] * program.num_ranks
        self._spans: list[TimedInstruction] = []

    def advance(self) -> bool:
        """Let each rank go on until it waits for something that was not sent yet; whether any did."""
        moved = False
        # Greedy is exact here: a rank's order is fixed, so nobody's choice can change what another one sees.
        for rank, instructions in enumerate(self._program.ranks):
            while self._places[rank] < len(instructions) and self._step(rank, instructions[self._places[rank]]):
                self._places[rank] += 1
                moved = True
        return moved

    def _step(self, rank: int, instruction: Instruction) -> bool:
        start_s = self._now_s[rank]
        if isinstance(instruction, Receive):
            if instruction.crossing not in self._arrives_s:
                return False
            self._now_s[rank] = max(start_s, self._arrives_s.pop(instruction.crossing))
        elif isinstance(instruction, Send):
            crossing = instruction.crossing
            num_bytes = self._stages[crossing.boundary].output_bytes
            # The rank goes on at once: sending takes its link and not its processor.
            left_s = max(start_s, self._link_free_s[rank]) + self._machine.beta_s_per_byte * num_bytes
            self._link_free_s[rank] = left_s
            self._arrives_s[crossing] = left_s + self._machine.alpha_s + self._delay_s(crossing)
        else:
            self._now_s[rank] = start_s + _seconds(instruction, self._stages[instruction.stage])
            self._busy_s[rank] += self._now_s[rank] - start_s
        self._spans.append(TimedInstruction(rank, instruction, start_s, self._now_s[rank]))
        return True

    def finished(self) -> PipelineTimeline:
        left = [len(own) - place for own, place in zip(self._program.ranks, self._places, strict=True)]
        if any(left):
            raise ParallelismError(f"ranks wait for ever with {left} instructions left; check the program")
        return PipelineTimeline(
            spans=tuple(self._spans),
            step_s=max(self._now_s),
            busy_s=tuple(self._busy_s),
            peak_bytes=tuple(peak_bytes(self._program, rank, self._stages) for rank in range(self._program.num_ranks)),
        )


def _seconds(action: Instruction, stage: StageCosts) -> float:
    if isinstance(action, Update):
        return stage.update_s
    return stage.backward_s if isinstance(action, Backward) else stage.forward_s


def peak_bytes(program: PipelineProgram, rank: int, stages: Sequence[StageCosts], copies: int = 3) -> int:
    """Most bytes that a rank holds: weights with gradients and momentum (`copies`), weight versions, activations.

    The order of a rank's actions does not depend on time, so neither does this.
    """
    held = peak = 0
    for step in program.ranks[rank]:
        if isinstance(step, Forward):
            held += stages[step.stage].input_bytes + (stages[step.stage].saved_bytes if step.keep else 0)
        elif isinstance(step, Recompute):
            held += stages[step.stage].saved_bytes
        peak = max(peak, held)
        if isinstance(step, Backward):
            held -= stages[step.stage].input_bytes + stages[step.stage].saved_bytes
    own = range(rank, program.num_stages, program.num_ranks)
    return peak + sum(stages[stage].weight_bytes * (copies - 1 + peak_versions(program, stage)) for stage in own)


def costs_of(
    layers: Sequence[PlannedLayer],
    stages: Sequence[PlannedStage],
    machine: Machine,
    work: Workshare,
    input_bytes: int = 0,
) -> tuple[StageCosts, ...]:
    """Costs of a plan's stages. Replicas share each micro-batch, and the largest slice counts. What crosses goes over
    as many pairs of devices in parallel as the smaller side has replicas."""
    found = []
    before_bytes = input_bytes
    for index, stage in enumerate(stages):
        own = layers[stage.first : stage.stop]
        samples = math.ceil(work.micro_batch_size / stage.num_replicas)
        weight_bytes = sum(layer.parameter_bytes + layer.tied_bytes for layer in own)
        behind = stages[index + 1].num_replicas if index + 1 < len(stages) else stage.num_replicas
        crossing_samples = math.ceil(work.micro_batch_size / min(stage.num_replicas, behind))
        found.append(
            StageCosts(
                forward_s=samples * sum(layer.forward_s for layer in own),
                backward_s=samples * sum(layer.backward_s for layer in own),
                update_s=machine.all_reduce_s(weight_bytes, stage.num_replicas),
                input_bytes=round(samples * before_bytes),
                saved_bytes=round(samples * sum(layer.saved_bytes for layer in own)),
                output_bytes=round(crossing_samples * own[-1].output_bytes),
                weight_bytes=weight_bytes,
                sum_bytes=machine.all_reduce_bytes(weight_bytes, stage.num_replicas),
            )
        )
        before_bytes = own[-1].output_bytes
    return tuple(found)
