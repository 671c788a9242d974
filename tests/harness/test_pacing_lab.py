"""Whole trials on the paced fabric: one real rank among virtual peers, and real ranks on links of their own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from patience import patience_s
from small_network import NAME

from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.bench import Bench
from harness.outcome import fabric_facts
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from results.record import Record, Status

NATIVE = FabricSpec(kind=FabricKind.NATIVE, num_hosts=1, rate_bps=None)
VIRTUAL = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=2e9, alpha_s=20e-6)
SMALL = WorkloadSpec(network=NAME, batch_size=4)
REPLAY = WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=400, batch_size=4)


def asked(fabric: FabricSpec, *names: str, sharing: Sharing | None = None, **job: object) -> Trial:
    given = {"workload": SMALL, "strategy": "fixed-buckets(bucket_bytes=262144)", **job}
    return Trial(
        suite="test",
        cell=f"test/{sharing}",
        jobs=tuple(Job(name=name, **given) for name in names),  # type: ignore[arg-type]
        fabric=fabric,
        sharing=sharing,
        num_warmup=1,
        num_steps=2,
        timeout_s=patience_s(120.0),
    )


def digests(record: Record) -> set[str]:
    assert record.status is Status.OK, record.reason
    return {job.weights_digest for job in record.jobs}


@pytest.fixture(scope="module")
def alone(bench: Bench) -> Record:
    return bench.run(asked(VIRTUAL, "a"))


def test_equal_peers_change_no_weights_and_every_job_pays_its_link_time(alone: Record, bench: Bench) -> None:
    """A mean over a power of two of equal numbers is exact."""
    solo = bench.run(asked(NATIVE, "a"))
    shared = bench.run(asked(VIRTUAL, "a", "b", sharing=Sharing.CROSSOVER))
    assert digests(solo) == digests(alone) == digests(shared)
    (job,) = alone.jobs
    num_bytes = 2 * 7 / 8 * 4 * job.num_parameters
    assert job.wire_bytes["gradient"] == pytest.approx(num_bytes)
    assert min(job.step_times_s()) >= num_bytes * 8 / 2e9


def test_a_record_tells_virtual_peers_from_hosts(bench: Bench) -> None:
    trial = asked(VIRTUAL, "a", workload=REPLAY)
    facts = fabric_facts(trial, bench.link(trial.fabric))
    assert (facts.kind, facts.num_hosts, facts.num_virtual) == ("paced", 1, 7)
    assert facts.alpha_s == pytest.approx(14 * 20e-6)
    assert facts.beta_s_per_byte == pytest.approx(1.75 * 8 / 2e9)
    assert facts.fit_residual == 0.0


@pytest.mark.parametrize(
    "system",
    [
        "torch-ddp",
        pytest.param(
            "deepspeed",
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
            ],
        ),
    ],
)
def test_other_systems_train_to_the_same_weights_and_pay_for_their_bytes(
    system: str, alone: Record, bench: Bench
) -> None:
    theirs = bench.run(asked(VIRTUAL, "a", system=system))
    assert digests(alone) == digests(theirs)
    (job,) = theirs.jobs
    assert min(job.step_times_s()) >= 2 * 7 / 8 * 4 * job.num_parameters * 8 / 2e9


def test_jobs_of_several_real_ranks_end_equal_too(bench: Bench) -> None:
    fabric = FabricSpec(kind=FabricKind.PACED, num_hosts=2, rate_bps=1e9, alpha_s=20e-6)
    shared = bench.run(asked(fabric, "a", "b", sharing=Sharing.NAIVE))
    (ours,) = digests(shared)
    assert (shared.fabric.label, shared.fabric.num_virtual) == ("paced", 0)
    assert digests(bench.run(asked(fabric, "a", system="torch-ddp"))) == {ours}


def test_a_system_that_would_go_past_the_link_is_skipped_with_the_reason(bench: Bench) -> None:
    record = bench.run(asked(VIRTUAL, "a", system="deepspeed(zero=1)"))
    assert record.status is Status.SKIPPED
    assert "virtual peers keep none" in record.reason


def test_an_exchange_that_virtual_peers_cannot_do_says_so(bench: Bench) -> None:
    record = bench.run(asked(VIRTUAL, "a", strategy="fixed-buckets+ring"))
    assert record.status is Status.ERROR
    assert "num_virtual=0" in record.reason
