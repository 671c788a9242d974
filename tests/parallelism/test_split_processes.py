"""Split jobs by real processes: the weights and losses of lockstep, and in replay the messages that the plan counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import patience_s

from baselines.parallelism.operator_costs import OperatorConfig
from fabric.api import FabricKind, FabricSpec
from harness.lab.labs import Labs
from harness.lab.messages import Answer, Ending, Task
from harness.lab.rank import Signals
from harness.outcome import Background, record_of
from harness.splits.split_replay import exchanging_ranks
from harness.splits.split_trial import planned_split, run_split_in_process
from harness.splits.splitting import Splitting
from harness.trial import Job, Trial
from models.values import Device, WorkloadSpec
from results.record import Environment, Status

PACED_PAIR = FabricSpec(kind=FabricKind.PACED, num_hosts=2, rate_bps=1e9)
PACED_ALONE = replace(PACED_PAIR, num_hosts=1, num_virtual=4)
TEXT = WorkloadSpec(network="lstm_lm", data="text", batch_size=12, sequence_length=8, dropout=0.0, num_evaluation=32)
REPLAYED = WorkloadSpec(network="vgg16", device=Device.REPLAY, batch_size=8, size_scale=200)
HYBRID = "mesh-tensorflow(mesh='rows=2,columns=2', layout='sample=rows,channel-out=columns')"


def trial_of(planner: str, workload: WorkloadSpec, fabric: FabricSpec, *, num_steps: int = 3) -> Trial:
    optimizer = "sgd(lr=0.05, momentum=0.9)"
    split = Splitting(planner=planner)
    # The job's own number of steps, which is not the trial's.
    job = Job(name="a", workload=workload, optimizer=optimizer, splitting=split, num_steps=num_steps)
    return Trial(
        suite="x",
        cell="g/w/l",
        jobs=(job,),
        fabric=fabric,
        num_warmup=1,
        num_steps=num_steps + 1,
        timeout_s=patience_s(120.0),
    )


def answered(labs: Labs, trial: Trial) -> Answer:
    answer = labs.ask(Task(trial=trial))
    assert answer.ending is Ending.DONE, answer.reason
    return answer


@pytest.mark.parametrize("planner", ["tofu", "mesh-tensorflow(mesh='columns=2', layout='channel-out=columns')"])
def test_processes_train_split_operators_as_lockstep_does(labs: Labs, planner: str) -> None:
    trial = replace(trial_of(planner, TEXT, PACED_PAIR), evaluate_every=2)
    answer = answered(labs, trial)
    lockstep = replace(trial, fabric=replace(PACED_PAIR, kind=FabricKind.LOCKSTEP))
    expected = next(run_split_in_process(lockstep, Signals(lambda: None)))
    for rank in answer.ranks:
        assert rank.losses == pytest.approx(expected.losses, rel=1e-5)
        assert rank.num_messages
        assert rank.wire_bytes["split"] > 0
        assert len(rank.step_times_s) == 4
        # Evaluations are in neither: what is waited for in a step is a part of it.
        assert rank.phases.compute_s is not None
        assert rank.phases.compute_s > 0
    distance = answer.ranks[0].distance
    assert distance is not None
    assert distance < 1e-5
    record = record_of(trial, answer, Background(Environment()))
    # Ranks whose weights differ would be an error.
    assert record.status is Status.OK
    (job,) = record.jobs
    assert job.clock == "measured"
    assert [point.step for point in job.curve if point.accuracy is not None] == [2, 4]


@pytest.mark.parametrize(("planner", "fabric"), [("tofu", PACED_ALONE), (HYBRID, PACED_ALONE), ("hypar", PACED_PAIR)])
def test_a_replayed_rank_sends_what_its_plan_says(labs: Labs, planner: str, fabric: FabricSpec) -> None:
    trial = trial_of(planner, REPLAYED, fabric)
    _, timeline = planned_split(trial)
    for rank in answered(labs, trial).ranks:
        assert rank.num_messages == timeline.num_messages
        assert rank.wire_bytes["split"] == pytest.approx(timeline.sent_bytes / REPLAYED.size_scale)
        # The link and the device keep their own time: no step is shorter than what cannot hide.
        assert min(rank.step_times_s[1:]) > 0.95 * max(timeline.compute_s, timeline.exchange_s)


DEGREES = st.sampled_from([1, 2, 3, 4])


@given(
    degrees=st.tuples(DEGREES, DEGREES, DEGREES, DEGREES),
    copies=st.sampled_from([1, 2]),
    dimensions=st.sets(st.sampled_from(["sample", "channel-out", "channel-in", "spatial"])),
)
def test_ranks_that_exchange_are_a_partition_of_all(
    degrees: tuple[int, ...], copies: int, dimensions: set[str]
) -> None:
    config = OperatorConfig(*degrees)
    size = 1
    for name, degree in config.degrees().items():
        size *= degree if name in dimensions else 1
    world = copies * config.num_devices
    groups = [exchanging_ranks(config, tuple(dimensions), rank) for rank in range(world)]
    assert all(rank in group and len(group) == size for rank, group in enumerate(groups))
    assert len(set(groups)) == world // size
    assert sorted(rank for group in set(groups) for rank in group) == list(range(world))


def test_the_last_dimension_comes_first_in_the_numbers_of_ranks() -> None:
    config = OperatorConfig(sample=2, channel_out=2)
    assert exchanging_ranks(config, ("channel-out",), 2) == (2, 3)
    assert exchanging_ranks(config, ("sample",), 2) == (0, 2)
