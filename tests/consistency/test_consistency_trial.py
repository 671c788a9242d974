"""A trial on the virtual clock is asked for, checked, run and recorded as any other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baselines.strategy import StrategyError, parse_strategy
from baselines.text import TextError
from fabric.api import FabricKind, FabricSpec
from harness.asynchrony.cluster import Disturbances, OnLoss, VirtualCluster
from harness.asynchrony.foretold import foretold_steps_s
from harness.asynchrony.trial import run_virtual
from harness.checks.trial import check
from harness.lab.messages import Answer, Ending
from harness.lab.rank import RankResult, Signals
from harness.outcome import Background, record_of
from harness.trial import Job, Trial, TrialError
from models.workload import WorkloadSpec
from results.codec import from_jsonable, to_jsonable
from results.record import Environment, Phases, Record, Status

STRAGGLER = VirtualCluster(num_workers=4, compute_s=1.0, disturbances=Disturbances(slowdowns=(1.0, 1.0, 1.0, 3.0)))


def trial_of(strategy: str, cluster: VirtualCluster | None = STRAGGLER, **more: object) -> Trial:
    job = Job(name="job", workload=WorkloadSpec(network="resnet20", batch_size=4, num_evaluation=32), strategy=strategy)
    asked: dict[str, object] = {
        "suite": "test",
        "cell": "test",
        "jobs": (job,),
        "fabric": FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=4),
        "num_steps": 3,
        "num_warmup": 1,
        "evaluate_every": 2,
        "cluster": cluster,
    }
    return Trial(**{**asked, **more})  # type: ignore[arg-type]


def on_hosts(strategy: str, **more: object) -> Trial:
    """Four workers and a server as processes."""
    return trial_of(strategy, fabric=FabricSpec(kind=FabricKind.NATIVE, num_hosts=5, rate_bps=None), **more)


def test_a_run_of_which_no_worker_is_left_has_a_record_that_says_so() -> None:
    trial = on_hosts("asp", on_loss=OnLoss.CONTINUE)
    server = RankResult(
        job=0, rank=4, step_times_s=(), losses=(), evaluated=(), phases=Phases(), num_messages=2.0, wire_bytes={},
        weights_digest="", num_parameters=1, peak_memory_bytes=1, start_s=0.0, end_s=1.0, serves=True,
    )  # fmt: skip
    answer = Answer(ending=Ending.DONE, ranks=(server,))
    record = record_of(trial, answer, Background(environment=Environment()))
    assert record.status is Status.ERROR
    assert "every worker was lost" in record.reason


def clipped(trial: Trial) -> Trial:
    return replace(trial, jobs=tuple(replace(job, clip_norm=1.0) for job in trial.jobs))


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    found = {}
    for strategy in ("bsp", "ssp(staleness=1)"):
        trial = trial_of(strategy)
        check(trial)
        signals = Signals(ready=lambda: None)
        answer = Answer(ending=Ending.DONE, ranks=tuple(run_virtual(trial, signals)))
        found[strategy] = record_of(trial, answer, Background(environment=Environment()))
    return found


def test_its_times_are_those_of_the_virtual_clock(records: dict[str, Record]) -> None:
    job = records["bsp"].jobs[0]
    assert records["bsp"].status is Status.OK
    assert job.clock == "virtual"
    assert {step for rank in job.ranks for step in rank.steps_s} == {3.0}  # all wait for the slowest
    assert [point.time_s for point in job.curve if point.accuracy is not None] == [6.0, 12.0]
    fast = records["ssp(staleness=1)"].jobs[0].ranks[0]
    assert sum((*fast.warmup_s, *fast.steps_s)) < 12.0


def test_its_record_says_how_far_workers_were_apart(records: dict[str, Record]) -> None:
    assert records["bsp"].jobs[0].consistency is not None
    assert records["bsp"].jobs[0].consistency.ahead == {"0": 16}
    facts = records["ssp(staleness=1)"].jobs[0].consistency
    assert facts is not None
    assert set(facts.ahead) == {"0", "1"}
    assert facts.clocks == (4, 4, 4, 4)
    assert sum(facts.missed.values()) == 16


def test_its_bytes_are_those_that_the_servers_send(records: dict[str, Record]) -> None:
    """Four workers have an answer each per step, which is more than one of them pushes."""
    job = records["bsp"].jobs[0]
    assert job.wire_bytes == {"answer": 4 * 4.0 * job.num_parameters}


def test_several_servers_carry_a_part_each_side_by_side() -> None:
    cluster = VirtualCluster(num_workers=4, compute_s=1.0, beta_s_per_byte=0.01)
    one, two = (
        foretold_steps_s(on_hosts("bsp", cluster=replace(cluster, num_servers=num)), [num * 100.0])[0] for num in (1, 2)
    )
    assert one == two


def test_the_record_and_the_trial_survive_json(records: dict[str, Record]) -> None:
    record = records["ssp(staleness=1)"]
    assert from_jsonable(Record, to_jsonable(record)) == record
    assert from_jsonable(Trial, record.trial).cluster == STRAGGLER


def test_both_train(records: dict[str, Record]) -> None:
    for record in records.values():
        trained = [point.loss for point in record.jobs[0].curve if point.accuracy is None]
        assert len(trained) == 4
        assert trained[-1] < 2.0 * trained[0]


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (trial_of("asp", cluster=None), "lets workers go on without each other; give the trial a cluster"),
        (
            trial_of("bsp", fabric=FabricSpec(kind=FabricKind.NATIVE, num_hosts=4, rate_bps=None)),
            "4 workers and 1 servers on 4 ranks of the fabric native; use a host for each",
        ),
        (
            trial_of("bsp", cluster=replace(STRAGGLER, num_workers=5, disturbances=Disturbances())),
            "5 workers on 4 ranks",
        ),
        (trial_of("bsp+signsgd"), "combines what all workers send at once"),
        (trial_of("bsp+p3"), "none can go before another; leave the ordering out"),
        (trial_of("hogwild"), "shares the memory of one host"),
        (trial_of("bsp+local-steps(n=4)"), "pushes to servers after each step; leave local steps out"),
        (trial_of("bsp+ring"), "push to servers of the consistency method; leave the exchange out"),
        (trial_of("bsp+at-pre-hook"), "reads all parameters at once; update after-all"),
        (on_hosts("bsp", on_loss=OnLoss.CONTINUE), "on_loss=continue under bsp, whose steps need every worker"),
        (clipped(on_hosts("bsp")), "neither accumulate nor clip"),
        (on_hosts("ssp+half"), "push uncompressed updates here"),
    ],
)
def test_what_the_virtual_clock_cannot_run_is_refused(trial: Trial, message: str) -> None:
    with pytest.raises(TrialError, match=message):
        check(trial)


@pytest.mark.parametrize(
    "text",
    [
        "ssp+signsgd",
        "asp+p3",
        "ssp+bytescheduler",
        "asp+parameter-server",
        "asp+ring",
        "dynssp+at-pre-hook",
        "ssp(staleness=-1)",
        "asp+ssp",
    ],
)
def test_illegal_pairs_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises((StrategyError, TextError)):
        parse_strategy(text)
