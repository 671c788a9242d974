"""Trials in lockstep: the same training as on real ranks, in one process, without a clock of its own."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import hooked_networks
import pytest
import torch
from patience import patience_s

from crossover import Sharing
from fabric.api import FabricError, FabricKind, FabricSpec, Host, build
from harness.bench import Bench
from harness.checks.trial import check
from harness.lab.messages import Answer, Ending
from harness.lab.rank import Place, RankResult, Signals, weights_digest
from harness.lockstep.trial import run_lockstep
from harness.memory import PROCESS_BYTES, check_memory, replica_bytes, trial_bytes
from harness.outcome import Background, record_of
from harness.predict.layers import plain_layers
from harness.predict.lockstep import predicted_step
from harness.trial import Job, Trial, TrialError
from models.workload import Device, WorkloadSpec, open_workload
from results.record import Environment, Prediction, Record, Status

HERE = Place(
    job=0,
    rank=0,
    host=Host(index=0, name="localhost", address="127.0.0.1", interface="lo"),
    slot=0,
)
IMAGES = WorkloadSpec(network="resnet20", data="digits", batch_size=4, num_evaluation=16)
TEXT = WorkloadSpec(network="lstm_lm", data="text", batch_size=2, sequence_length=8, num_evaluation=8, dropout=0.3)
LINK = FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=2, rate_bps=200e6, alpha_s=1e-4)


def trial(workload: WorkloadSpec = IMAGES, *, fabric: FabricSpec = LINK, **settings: Any) -> Trial:
    of_job = {field.name for field in dataclasses.fields(Job)} & settings.keys()
    job = Job(name="job", workload=workload, **{name: settings.pop(name) for name in of_job})
    asked = {"num_warmup": 1, "num_steps": 3, "evaluate_every": 2, "timeout_s": patience_s(150.0)} | settings
    return Trial(suite="test", cell=f"{fabric.kind}", jobs=(job,), fabric=fabric, **asked)


def results(asked: Trial) -> list[RankResult]:
    return list(run_lockstep(asked, HERE, Signals(lambda: None)))


def record(asked: Trial, ranks: list[RankResult], prediction: Prediction | None = None) -> Record:
    background = Background(Environment(), prediction=prediction)
    return record_of(asked, Answer(ending=Ending.DONE, ranks=tuple(ranks)), background)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"workload": IMAGES, "accumulate": 2}, id="micro-batches"),
        pytest.param(
            {"workload": TEXT, "strategy": "fixed-buckets+topk(density=0.05)+error-feedback", "optimizer": "adam"},
            id="dropout and a lossy compressor",
        ),
    ],
)
@pytest.mark.timeout(300)
def test_two_ranks_train_as_two_real_ones_do_bit_for_bit(bench: Bench, settings: dict[str, Any]) -> None:
    """A sum of two numbers has one order, so nothing may differ; data, dropout and weights come from the same seeds."""
    exact = record(trial(**settings), results(trial(**settings))).jobs[0]
    real = bench.run(trial(**settings, fabric=FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None))).jobs[0]
    assert exact.weights_digest == real.weights_digest
    assert exact.weights_digest
    assert [(p.step, p.loss, p.accuracy) for p in exact.curve] == [(p.step, p.loss, p.accuracy) for p in real.curve]
    assert (exact.wire_bytes, exact.num_messages) == (real.wire_bytes, real.num_messages)
    assert (exact.ranks, exact.clock, real.clock) == ((), "none", "measured")


@pytest.mark.timeout(300)
def test_a_lab_runs_it_in_one_process_and_tells_its_steps_and_the_bench_predicts_its_time(bench: Bench) -> None:
    steps: list[int] = []
    told = bench.run(trial(), lambda event: steps.append(event.step) if event.kind == "step" else None)
    assert (told.status, told.reason) == (Status.OK, "")
    assert steps[:1] == [0]
    assert told.prediction is not None
    (job,) = told.jobs
    assert (job.ranks, job.clock) == ((), "predicted")
    assert [point.time_s for point in job.curve[:2]] == [
        told.prediction.step_time_s,
        2 * (told.prediction.step_time_s or 0),
    ]


@pytest.mark.parametrize("world", [1, 3])
def test_every_virtual_rank_reports_and_ends_with_the_same_weights(world: int) -> None:
    asked = trial(fabric=dataclasses.replace(LINK, num_hosts=world))
    ranks = results(asked)
    assert [rank.rank for rank in ranks] == list(range(world))
    assert len({rank.weights_digest for rank in ranks}) == 1
    assert [e.step for e in ranks[0].evaluated] == [2, 4]
    assert all(len(rank.losses) == 4 and rank.step_times_s == () for rank in ranks)
    assert (len({rank.losses for rank in ranks}) == 1) == (world == 1)  # each has its own part of the data


@pytest.mark.parametrize("name", ["NORMALISED", "PRUNED", "HALVED", "DRAWN_ELSEWHERE"])
def test_own_networks_with_hooks_train_as_by_hand(name: str) -> None:
    """On two ranks, whose sums have one order. A copy of a network would compute with its original's layer."""
    spec = WorkloadSpec(network=f"{hooked_networks.__file__}:{name}", data="digits", batch_size=4)
    asked = trial(spec, evaluate_every=0)
    workload = open_workload(spec)
    models = [workload.build_model(asked.seed) for _ in range(2)]
    optimizers = [asked.jobs[0].resolve().optimizer.build(model.named_parameters()) for model in models]
    batches = [workload.batches(rank, 2, asked.seed) for rank in range(2)]
    for _ in range(4):
        for model, own in zip(models, batches, strict=True):
            workload.loss(model, next(own)).backward()
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack([parameter.grad for parameter in same if parameter.grad is not None]).mean(0)
            for parameter in same:
                parameter.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert {rank.weights_digest for rank in results(asked)} == {weights_digest(models[0])}


def test_bytes_after_every_step_are_those_of_the_rank_that_sent_most() -> None:
    servers = trial(strategy="fixed-buckets+parameter-server(servers=1)", fabric=dataclasses.replace(LINK, num_hosts=3))
    ranks = results(servers)
    assert [rank.serves for rank in ranks] == [False, False, True]
    most = max(sum(rank.wire_bytes.values()) for rank in ranks)
    first, *_, last = ranks[0].sent_bytes
    assert last == pytest.approx(4 * most)
    later = [b - a for a, b in itertools.pairwise(ranks[0].sent_bytes)]
    assert later == pytest.approx([later[0]] * 3)
    assert 0 < first - later[0] < 1_000  # the first step also broadcasts the order in which gradients became ready
    job = record(servers, ranks).jobs[0]
    assert job.num_servers == 1
    assert job.curve[-1].sent_bytes == pytest.approx(4 * sum(job.wire_bytes.values()))


def test_bytes_of_a_method_that_warms_up_are_told_step_by_step() -> None:
    asked = trial(strategy="fixed-buckets+topk(density=0.01)+error-feedback+warm-up(steps=2)")
    first, second, third, fourth = results(asked)[0].sent_bytes
    assert 0 < 2 * first - second < 1_000  # of the order in which gradients became ready, once
    assert fourth - third == third - second < 0.1 * first


def test_times_are_the_predicted_step_times_the_steps_or_nobody_knows() -> None:
    asked = trial()
    ranks = results(asked)
    told = record(asked, ranks, Prediction(source="clock", step_time_s=0.5))
    assert {(point.step, point.time_s) for point in told.jobs[0].curve} == {(n, 0.5 * n) for n in (1, 2, 3, 4)}
    assert (told.status, told.jobs[0].clock, told.fabric.label) == (Status.OK, "predicted", "lockstep")
    silent = record(asked, ranks)
    assert {point.time_s for point in silent.jobs[0].curve} == {None}
    assert (silent.jobs[0].clock, silent.makespan_s) == ("none", None)


def test_a_step_is_predicted_from_layer_times_and_the_link_that_the_fabric_names() -> None:
    layers = plain_layers((0.01,), (0.02,), (1_000_000,))
    fast, slow = (
        predicted_step(trial(fabric=dataclasses.replace(LINK, rate_bps=rate)), layers, "made up")
        for rate in (1e12, 8e6)
    )
    assert fast is not None
    assert fast.step_time_s == pytest.approx(0.03, abs=0.001)
    assert "made up" in fast.source
    assert slow is not None
    assert slow.step_time_s == pytest.approx(4.03, rel=0.01)  # 4 MB twice by halves at 1 MB/s behind 0.03 s
    assert predicted_step(trial(fabric=dataclasses.replace(LINK, rate_bps=None)), layers, "") is None
    assert predicted_step(trial(precision="bfloat16"), layers, "of float32") is None


def test_mixed_precision_scales_the_loss_of_every_micro_batch() -> None:
    plain, scaled = results(trial(accumulate=2)), results(trial(accumulate=2, precision="float16"))
    assert scaled[0].loss_scale is not None
    assert scaled[0].num_skipped < 4
    assert scaled[0].losses[0] == pytest.approx(plain[0].losses[0], rel=0.02)  # 11 bits of significand
    assert len({rank.weights_digest for rank in scaled}) == 1


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"system": "torch-ddp"}, "torch-ddp"),
        ({"clip_norm": 1.0}, "not clipped"),
        ({"num_cost_steps": 2}, "no costs"),
        ({"trace": True}, "no moments"),
        ({"ranks_per_host": 2}, "ranks_per_host|not one of 2"),
        ({"workload": WorkloadSpec(network="resnet50", device=Device.REPLAY)}, "learns nothing"),
    ],
)
def test_what_needs_processes_or_time_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(TrialError, match=named):
        check(trial(**settings))


def test_jobs_cannot_share_in_lockstep() -> None:
    jobs = tuple(Job(name=name, workload=IMAGES) for name in "ab")
    with pytest.raises(TrialError, match="lockstep"):
        check(Trial(suite="test", cell="pair", jobs=jobs, fabric=LINK, sharing=Sharing.CROSSOVER))


def test_memory_is_that_of_all_replicas_with_their_states() -> None:
    two, eight = (trial(fabric=dataclasses.replace(LINK, num_hosts=n)) for n in (2, 8))
    num_parameters = results(dataclasses.replace(two, num_steps=1))[0].num_parameters
    assert replica_bytes(eight) - replica_bytes(two) == pytest.approx(6 * 28 * num_parameters, rel=0.01)
    assert trial_bytes(two) == PROCESS_BYTES + replica_bytes(two)
    big = WorkloadSpec(network="bert_large", data="text", batch_size=512, sequence_length=512)
    with pytest.raises(TrialError, match=r"needs about \d+"):
        check_memory(trial(big, fabric=dataclasses.replace(LINK, num_hosts=64)))


def test_one_host_holds_all_ranks_and_virtual_peers_stay_where_they_were() -> None:
    with build(LINK) as cluster:
        assert len(cluster.hosts) == 1
        assert cluster.counters() is None
    with pytest.raises(FabricError, match="num_virtual"):
        FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=1, num_virtual=4)
