"""Pipelined jobs among processes over a paced link: the weights of lockstep, alone and sharing devices."""

from dataclasses import replace

import pytest
from patience import patience_s

from analysis.corrections import corrected
from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.bench import Bench
from harness.parallel.placement import Pipelining
from harness.trial import Job, Trial
from models.values import Device, WorkloadSpec
from results.record import JobResult, Record, Status

PACED = FabricSpec(kind=FabricKind.PACED, num_hosts=2, rate_bps=1e9, alpha_s=20e-6)
LOCKSTEP = FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=2, rate_bps=1e9, alpha_s=20e-6)
DIGITS = WorkloadSpec(network="resnet20", data="digits", batch_size=8, num_evaluation=40)
REPLAYED = WorkloadSpec(network="vgg16", device=Device.REPLAY, batch_size=1, size_scale=500)


def trial_of(workload: WorkloadSpec, fabric: FabricSpec, system: str = "ours") -> Trial:
    job = Job(
        name="a",
        workload=workload,
        system=system,
        accumulate=4,
        optimizer="sgd(lr=0.05)",
        pipelining=Pipelining(schedule="dapple"),
    )
    return Trial(
        suite="x",
        cell="g/w/l",
        jobs=(job,),
        fabric=fabric,
        num_warmup=1,
        num_steps=2,
        evaluate_every=3,
        timeout_s=patience_s(120.0),
    )


def ran(bench: Bench, trial: Trial) -> Record:
    record = bench.run(trial)
    assert record.status is Status.OK, record.reason
    return record


@pytest.fixture(scope="module")
def here(bench: Bench) -> JobResult:
    """Trained by stages that are processes."""
    (job,) = ran(bench, trial_of(DIGITS, PACED)).jobs
    return job


@pytest.mark.slow
def test_processes_end_with_the_bits_and_the_accuracy_of_lockstep(bench: Bench, here: JobResult) -> None:
    (there,) = ran(bench, trial_of(DIGITS, LOCKSTEP)).jobs
    assert here.weights_digest == there.weights_digest
    assert [point.accuracy for point in here.curve] == [point.accuracy for point in there.curve]
    assert here.clock == "measured"
    assert there.clock == "virtual"
    assert here.pipeline is not None
    assert there.pipeline is not None
    assert here.pipeline.peak_stash == there.pipeline.peak_stash == here.pipeline.stash_formula
    assert here.pipeline.sent_bytes == there.pipeline.sent_bytes


@pytest.mark.slow
def test_two_jobs_pass_by_pass_end_with_the_bits_of_one_after_the_other(bench: Bench) -> None:
    base = replace(trial_of(REPLAYED, PACED), evaluate_every=0)
    jobs = (base.jobs[0], replace(base.jobs[0], name="b"))
    alone = ran(bench, replace(base, jobs=jobs, sharing=Sharing.EXCLUSIVE, num_cost_steps=1))
    shared = ran(bench, replace(base, jobs=jobs, sharing=Sharing.CROSSOVER))
    assert [job.weights_digest for job in shared.jobs] == [job.weights_digest for job in alone.jobs]
    assert shared.prediction is not None
    assert shared.sharing_facts is not None
    # 4 forwards and backwards and an update in each of 3 steps, of two jobs: passes took turns.
    assert shared.sharing_facts.num_handovers > 3


@pytest.mark.slow
def test_torchs_executor_runs_as_a_system_of_a_trial(bench: Bench, here: JobResult) -> None:
    record = ran(bench, trial_of(DIGITS, PACED, system="torch-pipelining"))
    (torchs,) = record.jobs
    # The same sums in another order: three steps of float32.
    assert [point.loss for point in torchs.curve] == pytest.approx([point.loss for point in here.curve], rel=1e-3)
    assert torchs.pipeline is not None
    assert torchs.pipeline.bubble is None
    # It says neither what it computes nor what it sends; older records hold zeros for that.
    assert (torchs.phases.compute_s, torchs.phases.exposed_s, torchs.num_messages) == (None, None, None)
    assert torchs.wire_bytes == {}
    zeros = replace(torchs.phases, compute_s=0.0, exposed_s=0.0)
    older = replace(torchs, phases=zeros, num_messages=0.0, wire_bytes={"pipeline": 0.0})
    assert corrected([replace(record, jobs=(older,))]) == [record]
    assert corrected([replace(record, jobs=(here,))])[0].jobs == (here,)
