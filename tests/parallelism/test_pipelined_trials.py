"""Pipelined jobs as jobs of a trial: in lockstep with times from the virtual clock, and what a trial refuses."""

import itertools
from dataclasses import replace

import pytest
import torch
from one_device import loss_of

from analysis.pipelines.plots import bubbles
from analysis.pipelines.timelines import timeline_rows
from baselines.parallelism.api import ParallelismError
from baselines.parallelism.plans import Machine, balanced_stages
from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.checks.trial import check
from harness.facts import plugins_of
from harness.lab.messages import Answer, Ending
from harness.lab.rank import RankResult, Signals, weights_digest
from harness.outcome import Background, record_of
from harness.parallel.pipeline import drive, open_ranks
from harness.parallel.placement import Pipelining
from harness.parallel.rank_program import RankRun, SendTo, SumOver
from harness.parallel.trial_clock import run_pipelines_on_clock
from harness.parallel.trial_job import open_job
from harness.sharing_settings import with_rules
from harness.trial import Job, Trial
from models.graph_building import graph_of
from models.values import Device, WorkloadSpec
from results.codec import from_jsonable, to_jsonable
from results.record import Environment, JobCosts, Record

LOCKSTEP = FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=4, rate_bps=10e9)
VIRTUAL_PEERS = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=3, rate_bps=1e9)
REPLAYED = WorkloadSpec(network="bert_base", device=Device.REPLAY, batch_size=4, size_scale=50)
DIGITS = WorkloadSpec(network="resnet20", data="digits", batch_size=8, num_evaluation=60)


def trial_of(
    schedule: str, num_micro_batches: int, workload: WorkloadSpec = REPLAYED, sharing: Sharing | None = None
) -> Trial:
    job = Job(
        name="a",
        workload=workload,
        accumulate=num_micro_batches,
        optimizer="sgd(lr=0.05)",
        pipelining=Pipelining(schedule=schedule),
    )
    jobs = (job,) if sharing is None else (job, replace(job, name="b"))
    return Trial(suite="x", cell="g/w/l", jobs=jobs, fabric=LOCKSTEP, sharing=sharing, num_warmup=1, num_steps=3)


def run(trial: Trial) -> tuple[RankResult, ...]:
    check(trial)
    return tuple(run_pipelines_on_clock(trial, Signals(lambda: None)))


def record(trial: Trial, costs: tuple[JobCosts, ...] = ()) -> Record:
    answer = Answer(ending=Ending.DONE, ranks=run(trial))
    return record_of(trial, answer, Background(Environment(), costs=costs))


def test_bytes_of_replicas_are_those_that_ranks_send() -> None:
    """What crosses, and the sums of gradients among replicas."""
    base = trial_of("dapple", 4, DIGITS)
    asked = Pipelining(schedule="dapple", replicas=(1, 2, 1))
    trial = replace(base, jobs=(replace(base.jobs[0], pipelining=asked),), num_steps=1)
    opened = open_job(trial, 0)
    data = next(opened.steps(trial.seed))
    ranks = open_ranks(opened.pipeline, opened.model, data).ranks
    sent = [0.0] * len(ranks)

    def counting(number: int, run: RankRun) -> RankRun:
        answer = None
        while True:
            try:
                request = run.send(answer)
            except StopIteration:
                return
            if isinstance(request, SendTo):
                sent[number] += request.tensor.nbytes
            elif isinstance(request, SumOver):
                sent[number] += Machine.all_reduce_bytes(request.tensor.nbytes, len(request.ranks))
            answer = yield request

    drive([counting(number, rank.run(data)) for number, rank in enumerate(ranks)])
    assert [rank.wire_bytes["pipeline"] for rank in run(trial)] == sent


@pytest.mark.parametrize(
    ("schedule", "num_micro_batches"), [("gpipe", 8), ("gpipe(recompute=True)", 4), ("dapple", 8), ("interleaved", 8)]
)
def test_a_record_says_how_a_replayed_job_went_through_its_stages(schedule: str, num_micro_batches: int) -> None:
    facts = record(trial_of(schedule, num_micro_batches)).jobs[0].pipeline
    assert facts is not None
    assert facts.peak_stash == facts.stash_formula
    assert facts.bubble == pytest.approx(facts.bubble_clock)
    assert facts.bubble_formula is not None
    assert facts.bubble >= facts.bubble_formula - 0.02  # stages of BERT are not quite equal, and messages cost time
    assert facts.versions == (1, 1, 1, 1)
    assert facts.staleness == (0, 0, 0, 0)
    assert min(facts.memory_bytes) > 0


@pytest.mark.parametrize(("schedule", "per_step"), [("pipedream", 1), ("pipemare", 4)])
def test_a_schedule_without_a_flush_tells_its_staleness_and_no_bubble_per_step(schedule: str, per_step: int) -> None:
    workload = replace(REPLAYED, network="vgg16")
    facts = record(replace(trial_of(schedule, per_step, workload), num_steps=9)).jobs[0].pipeline
    assert facts is not None
    assert facts.bubble_formula is None
    assert facts.staleness[0] > 0
    assert facts.staleness[-1] == (schedule == "pipemare")
    if schedule == "pipedream":
        assert facts.versions == (4, 3, 2, 1)
        assert facts.staleness == (3, 2, 1, 0)


def test_a_record_with_stages_is_read_back_as_it_was_written() -> None:
    written = record(trial_of("dapple", 8))
    assert from_jsonable(Record, to_jsonable(written)) == written
    assert written.jobs[0].clock == "virtual"
    assert written.jobs[0].strategy == "dapple"
    assert [plugin.name for plugin in plugins_of(trial_of("dapple", 8).jobs[0])] == ["dapple"]


def test_real_stages_train_to_the_weights_of_one_device() -> None:
    trial = trial_of("dapple", 4, DIGITS)
    opened = open_job(trial, 0)
    alone, steps = opened.workload.build_model(trial.seed), opened.steps(trial.seed)
    optimizer = trial.jobs[0].resolve().optimizer.build(list(alone.parameters()))
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        parts = [loss_of(alone, micro_batch) for micro_batch in next(steps)]
        torch.stack(parts).sum().backward()
        losses.append(float(torch.stack(parts).detach().sum()))
        optimizer.step()
    found = run(replace(trial, evaluate_every=2))
    # Sums of four micro-batches in another order, over four steps of float32.
    assert found[0].losses == pytest.approx(losses, rel=1e-4)
    assert len({rank.weights_digest for rank in found}) == 1
    assert found[0].weights_digest != weights_digest(opened.model)
    assert [entry.step for entry in found[0].evaluated] == [2, 4]


def test_a_real_job_trains_the_steps_that_it_asks_for() -> None:
    trial = replace(trial_of("dapple", 4, DIGITS), evaluate_every=2)
    rank, *_ = run(replace(trial, jobs=(replace(trial.jobs[0], num_steps=1),)))
    assert len(rank.losses) == len(rank.step_times_s) == 2
    assert [one.step for one in rank.evaluated] == [2]


def test_two_jobs_fill_each_others_bubbles_on_the_clock() -> None:
    alone = replace(trial_of("dapple", 8, sharing=Sharing.EXCLUSIVE), num_cost_steps=1, num_steps=20)
    before = record(alone)
    costs = tuple(job.costs for job in before.jobs if job.costs is not None)
    shared = replace(alone, sharing=Sharing.CROSSOVER)
    shifted = replace(shared, jobs=(shared.jobs[0], replace(shared.jobs[1], start_phase=0.5)))
    together, apart = (record(with_rules(trial, costs), costs) for trial in (shared, shifted))
    assert before.makespan_s is not None
    assert together.makespan_s is not None
    assert apart.makespan_s is not None
    assert apart.prediction is not None
    assert apart.prediction.gain is not None
    assert before.makespan_s > together.makespan_s > apart.makespan_s
    # Steps that begin together have their bubbles together; half a step apart, one job's are the other's passes.
    assert before.makespan_s / apart.makespan_s > 0.93 * apart.prediction.gain


def test_the_bubbles_of_a_job_alone_are_drawn_above_those_that_the_other_job_fills() -> None:
    alone = replace(trial_of("dapple", 8, sharing=Sharing.EXCLUSIVE), num_cost_steps=1, num_steps=9)
    before = record(alone)
    costs = tuple(job.costs for job in before.jobs if job.costs is not None)
    together = record(with_rules(replace(alone, sharing=Sharing.CROSSOVER, finds_phases=True), costs), costs)
    (row,) = timeline_rows([[before], [together]])
    assert before.jobs[0].pipeline is not None
    assert before.jobs[0].pipeline.bubble is not None
    # The window is some steps and a part of one, whose bubbles are not those of a whole step.
    assert row.alone_busy == pytest.approx(1 - before.jobs[0].pipeline.bubble, abs=0.08)
    assert row.alone_busy + 0.2 < row.together_busy <= 1.0
    assert [job.name for job in row.together] == ["a", "b"]
    for rank in range(4):
        spans = sorted((own.start_s, own.end_s) for job in row.together for own in job.passes if own.rank == rank)
        # One pass at a time on a device, whichever job's; times are sums of floats.
        assert all(end_s <= start_s + 1e-9 for (_, end_s), (start_s, _) in itertools.pairwise(spans))
    assert len(bubbles(row).axes) == 2
    assert timeline_rows([[before]]) == ()


def test_jobs_that_find_their_phases_share_as_well_as_the_best_one_that_could_be_given() -> None:
    alone = replace(trial_of("dapple", 8, sharing=Sharing.EXCLUSIVE), num_cost_steps=1, num_steps=12)
    costs = tuple(job.costs for job in record(alone).jobs if job.costs is not None)
    shared = replace(alone, sharing=Sharing.CROSSOVER)
    asked = replace(shared, finds_phases=True)
    check(asked)
    found = with_rules(asked, costs)
    given = [replace(shared, jobs=(shared.jobs[0], replace(shared.jobs[1], start_phase=k / 4))) for k in range(4)]
    settled_s = [period_of(with_rules(trial, costs)) for trial in (found, *given)]
    assert found.jobs[0].start_phase == 0.0
    assert found.jobs[1].start_delay_s > 0.0
    # A phase that was tried is no worse than any of those that are multiples of it too.
    assert settled_s[0] <= min(settled_s[1:]) * (1 + 1e-3)
    assert settled_s[0] < 0.95 * settled_s[1]


def period_of(trial: Trial) -> float:
    """The slower job's mean step once all run."""
    return max(sum(rank.step_times_s[4:]) / len(rank.step_times_s[4:]) for rank in run(trial) if rank.rank == 3)


def test_phases_are_found_for_pipelines_under_crossover_alone() -> None:
    shared = replace(trial_of("dapple", 8, sharing=Sharing.CROSSOVER), finds_phases=True)
    with pytest.raises(ValueError, match="finds_phases is for pipelined jobs"):
        check(replace(shared, sharing=Sharing.EXCLUSIVE))
    given = replace(shared, jobs=(shared.jobs[0], replace(shared.jobs[1], start_phase=0.5)))
    with pytest.raises(ParallelismError, match="without a start_phase of their own"):
        check(given)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schedule": "gpype"}, "unknown schedule 'gpype'"),
        ({"replicas": (2, 1)}, "are 3 ranks, and there are 4"),
        ({"cuts": (1,)}, "1 cuts for 4 stages; give 3"),
        ({"schedule": "pipedream"}, "one weight in two stages"),
        ({"schedule": "interleaved"}, "use a multiple of 4"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused_with_the_remedy(change: dict[str, object], says: str) -> None:
    trial = trial_of("dapple", 6)
    asked = replace(Pipelining(schedule="dapple"), **change)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=says):
        check(replace(trial, jobs=(replace(trial.jobs[0], pipelining=asked),)))


def test_a_step_that_is_not_as_many_micro_batches_as_an_update_takes_is_refused() -> None:
    for schedule, wanted in (("pipedream", 1), ("pipemare", 4)):
        with pytest.raises(ParallelismError, match=f"use accumulate={wanted}"):
            check(trial_of(schedule, 6, replace(REPLAYED, network="vgg16")))


@pytest.mark.parametrize(
    ("trial", "says"),
    [
        (trial_of("dapple", 4, sharing=Sharing.HOLD), "use crossover"),
        (trial_of("dapple", 4, sharing=Sharing.NAIVE), "share by exclusive or crossover"),
        (replace(trial_of("dapple", 4), fabric=VIRTUAL_PEERS), "real neighbour"),
    ],
    ids=["hold", "naive", "virtual peers"],
)
def test_trials_in_which_pipelines_cannot_run_are_refused(trial: Trial, says: str) -> None:
    with pytest.raises(ParallelismError, match=says):
        check(trial)


def test_more_stages_than_layers_are_refused() -> None:
    layers = graph_of("lstm_lm").layers
    with pytest.raises(ParallelismError, match="5 stages for 4 layers; use 1 to 4"):
        balanced_stages(layers, (1,) * 5)


def test_balanced_stages_are_the_best_of_all_cuts() -> None:
    layers = graph_of("vgg16").layers
    own = [layer.forward_s + layer.backward_s for layer in layers]

    def slowest_s(cuts: tuple[int, ...]) -> float:
        bounds = (0, *cuts, len(own))
        return max(sum(own[first:stop]) for first, stop in itertools.pairwise(bounds))

    found = balanced_stages(layers, (1,) * 4)
    best = min(slowest_s(cuts) for cuts in itertools.combinations(range(1, len(own)), 3))
    assert slowest_s(tuple(stage.first for stage in found[1:])) == pytest.approx(best)
