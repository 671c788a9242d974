import itertools
import random
from dataclasses import dataclass
from typing import ClassVar

import pytest

from baselines.parallelism.api import (
    Actions,
    Backward,
    Forward,
    ParallelCard,
    ParallelismError,
    PipelineSchedule,
    Update,
)
from baselines.parallelism.dapple import Dapple, WarmUpPolicy
from baselines.parallelism.gpipe import GPipe
from baselines.parallelism.interleaved import Interleaved
from baselines.parallelism.pipedream import PipeDream
from baselines.parallelism.pipemare import PipeMare
from baselines.parallelism.plans import Machine
from baselines.parallelism.programs import Crossing, assemble, check, peak_stash, peak_versions, program_of
from harness.parallel.clock import StageCosts, run_on_clock

SCHEDULES: tuple[PipelineSchedule, ...] = (
    GPipe(),
    GPipe(recompute=True),
    Dapple(),
    Dapple(WarmUpPolicy.B),
    Dapple(most_in_flight=2),
    PipeDream(),
    PipeDream(vertical_sync=True),
    PipeDream(stash=False),
    PipeMare(1),
    PipeMare(4),
    PipeMare(4, synchronous_steps=1),
    Interleaved(2),
    Interleaved(3),
)
FREE = Machine(num_devices=8, alpha_s=0.0, beta_s_per_byte=0.0)


def fits(schedule: PipelineSchedule, num_ranks: int, num_micro_batches: int) -> bool:
    if isinstance(schedule, Interleaved):
        return num_micro_batches % num_ranks == 0
    return not isinstance(schedule, PipeMare) or num_micro_batches % schedule.micro_batches_per_step == 0


def sizes(schedule: PipelineSchedule) -> list[tuple[int, int]]:
    return [pair for pair in itertools.product(range(1, 9), range(1, 17)) if fits(schedule, *pair)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_all_schedules_are_whole_end_and_hold_what_their_formula_says(schedule: PipelineSchedule) -> None:
    # `program_of` checks: every micro-batch once each way, weights that exist, and no wait for ever, which holds for
    # every delay of every message since what a rank waits for does not depend on time.
    for num_ranks, num_micro_batches in sizes(schedule):
        program = program_of(schedule, num_ranks, num_micro_batches)
        for rank in range(num_ranks):
            assert peak_stash(program, rank) == schedule.peak_stash(rank, num_ranks, num_micro_batches)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=repr)
def test_schedules_end_under_random_delays_of_their_messages(schedule: PipelineSchedule) -> None:
    # 13 schedules × 770 runs: 10,010 draws. The longest delay is 100 passes, so messages overtake each other.
    chance = random.Random(repr(schedule))
    small = [pair for pair in sizes(schedule) if pair[0] * pair[1] <= 16] + [max(sizes(schedule))]
    programs = [program_of(schedule, *pair) for pair in small]
    for draw in range(770):
        program = programs[draw % len(programs)]
        stages = [StageCosts(forward_s=chance.random(), backward_s=chance.random())] * program.num_stages
        timeline = run_on_clock(program, stages, FREE, lambda crossing: chance.choice((0.0, 1.0, 100.0)))
        assert len(timeline.spans) == sum(len(own) for own in program.ranks)


@pytest.mark.parametrize(
    "schedule", [entry for entry in SCHEDULES if entry not in (Dapple(most_in_flight=2), SCHEDULES[10])], ids=repr
)
def test_the_bubble_on_the_clock_is_the_formulas(schedule: PipelineSchedule) -> None:
    for num_ranks, num_micro_batches in sizes(schedule):
        if num_micro_batches < num_ranks and not isinstance(schedule, GPipe):
            continue  # such a pipeline is never full
        program = program_of(schedule, num_ranks, num_micro_batches)
        timeline = run_on_clock(program, [StageCosts(forward_s=1.0, backward_s=2.0)] * program.num_stages, FREE)
        assert timeline.bubble == pytest.approx(schedule.bubble(num_ranks, num_micro_batches), abs=1e-9)


def test_pipedream_keeps_a_version_per_stage_that_follows() -> None:
    program = program_of(PipeDream(), 4, 12)
    assert [peak_versions(program, stage) for stage in range(4)] == [4, 3, 2, 1]
    synced = program_of(PipeDream(vertical_sync=True), 4, 12)
    assert [peak_versions(synced, stage) for stage in range(4)] == [4, 4, 4, 4]
    assert [peak_versions(program_of(PipeMare(2), 4, 12), stage) for stage in range(4)] == [1, 1, 1, 1]


def test_pipemares_delay_is_the_papers_and_that_of_its_schedule() -> None:
    for num_stages, per_step in ((4, 1), (4, 2), (3, 4)):
        schedule = PipeMare(per_step)
        for stage in range(num_stages):
            own = schedule.actions(stage, num_stages, 16 * per_step)
            forward = {step.micro_batch: step.version for step in own if isinstance(step, Forward)}
            backward = {step.micro_batch: step.version for step in own if isinstance(step, Backward)}
            # Updates between the forward and the backward of each micro-batch of a step in the steady state.
            delays = [backward[micro] - forward[micro] for micro in range(8 * per_step, 9 * per_step)]
            paper = (2 * (num_stages - (stage + 1)) + 1) / per_step
            correction = schedule.discrepancy(stage, num_stages, 0)
            assert correction is not None
            assert sum(delays) / per_step == correction[0] == paper


def test_smaller_steps_for_older_weights_fade_out() -> None:
    schedule = PipeMare(1, rate_steps=10, synchronous_steps=2)
    assert schedule.learning_rate_scale(0, 4, 0) == 1.0
    assert schedule.learning_rate_scale(0, 4, 2) == pytest.approx(1 / 7)
    assert schedule.learning_rate_scale(0, 4, 7) == pytest.approx(7**-0.5)
    assert schedule.learning_rate_scale(0, 4, 12) == 1.0
    assert schedule.learning_rate_scale(3, 4, 2) == 1.0


@dataclass(frozen=True)
class Broken:
    card: ClassVar[ParallelCard] = ParallelCard(name="broken", summary="", paper="")
    synchronous: ClassVar[bool] = True
    own: tuple[Actions, ...]
    stages_per_rank: int = 1

    def actions(self, rank: int, num_ranks: int, num_micro_batches: int) -> Actions:
        return self.own[rank]

    def peak_stash(self, rank: int, num_ranks: int, num_micro_batches: int) -> int:
        return 1

    def bubble(self, num_ranks: int, num_micro_batches: int) -> float:
        return 0.0


def passes(stage: int, *micro_batches: int) -> Actions:
    both = [(Forward(stage, micro, 0), Backward(stage, micro, 0)) for micro in micro_batches]
    return (*itertools.chain(*both), Update(stage, 1, len(micro_batches)))


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ((passes(0, 0),), "each of 0 … 1 once"),
        ((passes(0, 0, 0),), "each of 0 … 1 once"),
        ((passes(0, 0, 1)[:-1],), "never applied"),
        (((*passes(0, 0, 1)[:-1], Update(0, 2, 2)),), "count them"),
        (((Backward(0, 0, 0), Forward(0, 0, 0), *passes(0, 1)),), "without the activations"),
        (((Forward(0, 0, 1), *passes(0, 0, 1)[1:]),), "weights to come"),
        # Backward of 0 before forward of 1 on the first stage, the other way round on the last: each waits.
        (
            (
                passes(0, 0, 1),
                (Forward(1, 1, 0), Forward(1, 0, 0), Backward(1, 0, 0), Backward(1, 1, 0), Update(1, 1, 2)),
            ),
            "never ends: rank 0 waits",
        ),
    ],
)
def test_a_wrong_schedule_is_found_before_it_runs(own: tuple[Actions, ...], says: str) -> None:
    with pytest.raises(ParallelismError, match=says):
        program_of(Broken(own), len(own), 2)


def test_a_program_names_each_message_once() -> None:
    program = assemble(tuple(GPipe().actions(rank, 3, 2) for rank in range(3)), 3, 2)
    check(program)
    timeline = run_on_clock(program, [StageCosts(forward_s=1.0, backward_s=1.0)] * 3, FREE)
    sent = [span.instruction for span in timeline.spans if type(span.instruction).__name__ == "Send"]
    assert len(sent) == len(set(sent)) == 2 * 2 * 2  # both ways, over two boundaries, for two micro-batches


def test_messages_leave_one_after_the_other_and_arrive_a_latency_later() -> None:
    program = program_of(GPipe(), 2, 2)
    machine = Machine(num_devices=2, alpha_s=1.0, beta_s_per_byte=0.5)
    timeline = run_on_clock(program, [StageCosts(forward_s=1.0, backward_s=1.0, output_bytes=8)] * 2, machine)
    # Forward 0 ends at 1, leaves until 5, arrives at 6; forward 1 ends at 2, leaves from 5 to 9, arrives at 10.
    forwards = [span.start_s for span in timeline.spans if span.rank == 1 and isinstance(span.instruction, Forward)]
    assert forwards == [6.0, 10.0]
    late = run_on_clock(
        program,
        [StageCosts(forward_s=1.0, backward_s=1.0)] * 2,
        FREE,
        lambda crossing: 7.0 if crossing == Crossing(0, 0, is_gradient=False) else 0.0,
    )
    assert late.step_s == pytest.approx(8 + 1 + 1 + 2 + 1)


def test_recompute_trades_activations_for_time() -> None:
    costs = [StageCosts(forward_s=1.0, backward_s=2.0, input_bytes=1, saved_bytes=100)] * 4
    kept = run_on_clock(program_of(GPipe(), 4, 8), costs, FREE)
    again = run_on_clock(program_of(GPipe(recompute=True), 4, 8), costs, FREE)
    assert kept.peak_bytes == (8 * 101,) * 4
    assert again.peak_bytes == (8 * 1 + 100,) * 4
    # A third more work, of which the share of the first micro-batch hides in the bubble.
    assert again.busy_s[0] / kept.busy_s[0] == pytest.approx(4 / 3)
    assert again.step_s == pytest.approx(8 * 4 + 3 * 3)


def test_early_backward_holds_less_than_gpipe_in_the_same_time() -> None:
    costs = [StageCosts(forward_s=1.0, backward_s=2.0, saved_bytes=100)] * 4
    gpipe = run_on_clock(program_of(GPipe(), 4, 8), costs, FREE)
    dapple = run_on_clock(program_of(Dapple(), 4, 8), costs, FREE)
    assert dapple.step_s == gpipe.step_s
    assert dapple.peak_bytes == (400, 300, 200, 100)


def test_stashed_weights_are_in_the_bytes() -> None:
    costs = [StageCosts(forward_s=1.0, backward_s=2.0, weight_bytes=10)] * 3
    assert run_on_clock(program_of(PipeDream(), 3, 9), costs, FREE).peak_bytes == (50, 40, 30)
    assert run_on_clock(program_of(PipeMare(1), 3, 9), costs, FREE).peak_bytes == (30, 30, 30)


@pytest.mark.parametrize(
    ("schedule", "num_ranks", "num_micro_batches", "says"),
    [
        (GPipe(), 2, 0, "num_micro_batches is 0"),
        (Dapple(), 0, 4, "num_ranks is 0"),
        (Interleaved(2), 4, 6, "use a multiple of 4"),
        (PipeMare(4), 2, 6, "use a multiple of 4"),
    ],
)
def test_numbers_that_a_schedule_cannot_serve_are_refused(
    schedule: PipelineSchedule, num_ranks: int, num_micro_batches: int, says: str
) -> None:
    with pytest.raises(ParallelismError, match=says):
        schedule.actions(0, num_ranks, num_micro_batches)


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(ParallelismError, match="turn stash on"):
        PipeDream(stash=False, vertical_sync=True)
    with pytest.raises(ParallelismError, match="decay in"):
        PipeMare(decay=1.0)
    with pytest.raises(ParallelismError, match="at least 2"):
        Interleaved(1)
    with pytest.raises(ParallelismError, match="no formula holds"):
        Dapple(most_in_flight=2).bubble(4, 8)
    with pytest.raises(ParallelismError, match="give one for each stage"):
        run_on_clock(program_of(GPipe(), 2, 2), [StageCosts(forward_s=1.0, backward_s=1.0)], FREE)
