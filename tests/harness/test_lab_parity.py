"""Real processes: our engine beside torch DDP and Horovod, run as themselves in the same loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lab_tasks import digest, done, spec_of, task

from harness.launch import LabHandle
from harness.messages import Ending

PAIR = spec_of("native")
LOSSLESS = (
    "unfused",
    "tensor-fusion(cycle_s=0.005)",
    "fixed-buckets(bucket_bytes=200000, first_bucket_bytes=50000)+ring",
    "fixed-buckets+at-pre-hook",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[LabHandle]:
    with LabHandle(PAIR) as handle:
        yield handle


@pytest.fixture(scope="module")
def ddp_digest(lab: LabHandle) -> str:
    return digest(lab.ask(task(PAIR, system="torch-ddp")))


def test_fixed_buckets_equal_torch_ddp_bit_for_bit(lab: LabHandle, ddp_digest: str) -> None:
    assert digest(lab.ask(task(PAIR, strategy="fixed-buckets"))) == ddp_digest


@pytest.mark.parametrize("strategy", LOSSLESS)
def test_lossless_strategies_equal_torch_ddp_on_two_ranks(lab: LabHandle, ddp_digest: str, strategy: str) -> None:
    """Two summands have one order, and halving is exact: bit for bit, however messages are cut."""
    answer = lab.ask(task(PAIR, strategy=strategy))
    assert digest(answer) == ddp_digest
    assert all(rank.wire_bytes["gradient"] > 0 for rank in answer.ranks)


@pytest.mark.parametrize("strategy", ["fixed-buckets+half", "unfused+topk(density=0.1)+error-feedback"])
def test_lossy_strategies_keep_ranks_equal_and_learn(lab: LabHandle, ddp_digest: str, strategy: str) -> None:
    answer = lab.ask(task(PAIR, strategy=strategy, num_steps=30))
    assert digest(answer) != ddp_digest
    losses = done(answer)[0].losses
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.horovod
@pytest.mark.parametrize("system", ["horovod(cycle_s=0.005)", "horovod(cycle_s=0.005, fusion_threshold_bytes=0)"])
def test_horovod_gives_the_same_weights(lab: LabHandle, ddp_digest: str, system: str) -> None:
    """Horovod divides after the sum and not before; for two ranks both are exact."""
    assert digest(lab.ask(task(PAIR, system=system))) == ddp_digest


def test_four_ranks_agree_with_torch_ddp(lab: LabHandle) -> None:
    """Each run's ranks agree bit for bit. Between the runs a ring of 4 sums in another order, since DDP
    puts its first step into one bucket: 1e-7 of the loss after a step, which training on batches of 4
    multiplies up to 1e-4 in 15 steps on one processor and to 1e-2 in 8 on another."""
    fabric = spec_of("native", num_hosts=4)
    ours, theirs = (lab.ask(task(fabric, **job)) for job in ({"strategy": "fixed-buckets"}, {"system": "torch-ddp"}))
    assert digest(ours)
    assert digest(theirs)
    for one, other in zip(ours.ranks, theirs.ranks, strict=True):
        assert one.losses[:5] == pytest.approx(other.losses[:5], rel=1e-4)
        assert one.losses == pytest.approx(other.losses, rel=0.5)


def test_without_communication_ranks_drift_apart(lab: LabHandle) -> None:
    answer = lab.ask(task(PAIR, system="local"))
    assert len({rank.weights_digest for rank in done(answer)}) == 2


def test_an_exception_in_a_rank_is_named_and_the_lab_goes_on(lab: LabHandle) -> None:
    """A rank without communication cannot measure what communication costs."""
    answer = lab.ask(task(PAIR, system="local", num_steps=2, num_cost_steps=1))
    assert answer.ending is Ending.FAILED
    assert "job a rank " in answer.reason
    assert "on localhost failed: ValueError: this system cannot communicate alone" in answer.reason
    assert lab.is_running
    assert digest(lab.ask(task(PAIR, num_steps=3)))


def test_who_is_late_is_named(lab: LabHandle) -> None:
    answer = lab.ask(task(PAIR, num_steps=1_000_000, timeout_s=3.0))
    assert answer.ending is Ending.TIMEOUT
    assert "not done after 3 s" in answer.reason
    assert "job a rank 0 at step" in answer.reason
    assert "job a rank 1 at step" in answer.reason


@pytest.mark.emulated
def test_parity_holds_on_the_emulated_fabric_and_interfaces_count() -> None:
    fabric = spec_of("emulated")
    with LabHandle(fabric) as emulated:
        ours, theirs = (emulated.ask(task(fabric, system=system)) for system in ("ours", "torch-ddp"))
    assert digest(ours) == digest(theirs)
    assert ours.sent_bytes is not None
    payload = ours.ranks[0].wire_bytes["gradient"] * 20
    assert all(sent >= payload for sent in ours.sent_bytes)
