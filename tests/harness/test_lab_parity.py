"""Real processes: our engine beside torch DDP and Horovod, run as themselves in the same loop."""

from __future__ import annotations

import pytest
from lab_tasks import digest, done, spec_of, task
from patience import patience_s

from harness.lab.labs import Labs
from harness.lab.messages import Answer, Ending

pytestmark = pytest.mark.slow

PAIR = spec_of("native")
NUM_STEPS = 4  # of which the first tells DDP, and fixed buckets, the order of the later ones
LOSSLESS = (
    "fixed-buckets",
    "unfused",
    "tensor-fusion(cycle_s=0.005)",
    "fixed-buckets(bucket_bytes=200000, first_bucket_bytes=50000)+ring",
    "fixed-buckets+at-pre-hook",
)


@pytest.fixture(scope="module")
def ddp(labs: Labs) -> Answer:
    return labs.ask(task(PAIR, system="torch-ddp", num_steps=NUM_STEPS))


@pytest.mark.parametrize("strategy", LOSSLESS)
def test_lossless_strategies_equal_torch_ddp_on_two_ranks(labs: Labs, ddp: Answer, strategy: str) -> None:
    """Two summands have one order, and halving is exact: bit for bit, however messages are cut."""
    answer = labs.ask(task(PAIR, strategy=strategy, num_steps=NUM_STEPS))
    assert digest(answer) == digest(ddp)
    assert all(rank.wire_bytes["gradient"] > 0 for rank in answer.ranks)


@pytest.mark.parametrize("strategy", ["fixed-buckets+half", "single-bucket+topk(density=0.1)+error-feedback"])
def test_lossy_strategies_keep_ranks_equal_and_learn(labs: Labs, ddp: Answer, strategy: str) -> None:
    answer = labs.ask(task(PAIR, strategy=strategy, num_steps=12))
    assert digest(answer)
    losses = done(answer)[0].losses
    assert losses[:NUM_STEPS] != done(ddp)[0].losses
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.horovod
@pytest.mark.parametrize("system", ["horovod(cycle_s=0.005)", "horovod(cycle_s=0.005, fusion_threshold_bytes=0)"])
def test_horovod_gives_the_same_weights(labs: Labs, ddp: Answer, system: str) -> None:
    """Horovod divides after the sum and not before; for two ranks both are exact. What its exchange and its computation
    cost alone is measured behind the training, so that it can share by what is foretold."""
    answer = labs.ask(task(PAIR, system=system, num_steps=NUM_STEPS, num_cost_steps=2))
    assert digest(answer) == digest(ddp)
    for rank in done(answer):
        assert rank.costs is not None
        assert rank.costs.compute_s > 0
        assert rank.costs.communication_s > 0


def test_four_ranks_agree_with_torch_ddp(labs: Labs) -> None:
    """Each run's ranks agree bit for bit. Between the runs a ring of 4 sums in another order, since DDP
    puts its first step into one bucket: 1e-7 of the loss after a step, which training on batches of 4
    multiplies up to 1e-4 in 15 steps on one processor and to 1e-2 in 8 on another."""
    fabric = spec_of("native", num_hosts=4)
    ours, theirs = (labs.ask(task(fabric, system=system, num_steps=5)) for system in ("ours", "torch-ddp"))
    assert digest(ours)
    assert digest(theirs)
    for one, other in zip(ours.ranks, theirs.ranks, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-4)


def test_without_communication_ranks_drift_apart(labs: Labs) -> None:
    answer = labs.ask(task(PAIR, system="local", num_steps=NUM_STEPS))
    assert len({rank.weights_digest for rank in done(answer)}) == 2


def test_an_exception_in_a_rank_is_named_and_the_lab_goes_on(labs: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank without communication cannot measure what communication costs."""
    answer = labs.ask(task(PAIR, system="local", num_steps=2, num_cost_steps=1))
    assert answer.ending is Ending.FAILED
    assert "job a rank " in answer.reason
    assert "on localhost failed: ValueError: this system cannot communicate alone" in answer.reason
    monkeypatch.setattr("harness.lab.labs.LabHandle", lambda *_: pytest.fail("another lab is started"))
    assert digest(labs.ask(task(PAIR, num_steps=3)))


def test_who_is_late_is_named(labs: Labs) -> None:
    answer = labs.ask(task(PAIR, num_steps=1_000_000, timeout_s=0.5))
    assert answer.ending is Ending.TIMEOUT
    assert "not done after 0.5 s" in answer.reason
    assert "job a rank 0 at step" in answer.reason
    assert "job a rank 1 at step" in answer.reason


# One method for each way of a code: sizes that are equal or differ, up a tree, by all ranks as servers or by one.
# The others take the same ways: what they compute is proved in lockstep, what they send in test_wire_bytes.py.
GATHERED = {
    "topk(density=0.1)+error-feedback": "sgd",
    "aji-heafield(density=0.1)+error-feedback": "sgd",
    "gtopk(density=0.1)+tree+error-feedback": "sgd",
    "onebit+double-squeeze+error-feedback": "sgd",
    "onebit+double-squeeze+error-feedback+parameter-server(servers=1)": "sgd",
}
SUMMED = {
    "powersgd+error-feedback": "sgd",
    "onebit-adam(warmup_steps=2)": "frozen-adam(freeze_after=2)",
}
NUM_COMPRESSED_STEPS = 4
PATIENCE_S = patience_s(150.0)  # a lab that has no cache compiles kernels first


def on_three_ranks(labs: Labs, kind: str, strategy: str, optimizer: str) -> Answer:
    asked = {"strategy": f"fixed-buckets+{strategy}", "optimizer": optimizer}
    return labs.ask(task(spec_of(kind, 3), num_steps=NUM_COMPRESSED_STEPS, timeout_s=PATIENCE_S, **asked))


@pytest.mark.timeout(300)  # a busy machine makes processes late, not wrong
@pytest.mark.parametrize("strategy", GATHERED)
def test_codes_give_the_weights_of_lockstep_bit_for_bit(labs: Labs, strategy: str) -> None:
    """Codes are decoded in order of rank and merged in the order of the tree, wherever the ranks are."""
    real = on_three_ranks(labs, "native", strategy, GATHERED[strategy])
    virtual = on_three_ranks(labs, "lockstep", strategy, GATHERED[strategy])
    training = [rank for rank in done(real) if not rank.serves]
    assert {rank.weights_digest for rank in training} == {
        rank.weights_digest for rank in done(virtual) if not rank.serves
    }
    assert [rank.losses for rank in training] == [rank.losses for rank in virtual.ranks if not rank.serves]
    assert [rank.wire_bytes for rank in real.ranks] == [rank.wire_bytes for rank in virtual.ranks]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", SUMMED)
def test_what_is_summed_on_the_way_learns_as_in_lockstep(labs: Labs, strategy: str) -> None:
    """A ring of three adds each part in another order: the last bit of a sum, of a half-precision number in one case,
    which training on batches of 4 multiplies up."""
    real = on_three_ranks(labs, "native", strategy, SUMMED[strategy])
    virtual = on_three_ranks(labs, "lockstep", strategy, SUMMED[strategy])
    assert digest(real)
    for one, other in zip(done(real), done(virtual), strict=True):
        assert one.losses[:3] == pytest.approx(other.losses[:3], rel=1e-3)
        assert one.losses == pytest.approx(other.losses, rel=0.1)
        assert one.wire_bytes == other.wire_bytes


@pytest.mark.emulated
def test_parity_holds_on_the_emulated_fabric_and_interfaces_count(labs: Labs) -> None:
    fabric = spec_of("emulated")
    ours, theirs = (labs.ask(task(fabric, system=system, num_steps=NUM_STEPS)) for system in ("ours", "torch-ddp"))
    assert digest(ours) == digest(theirs)
    assert ours.sent_bytes is not None
    payload = ours.ranks[0].wire_bytes["gradient"] * NUM_STEPS
    assert all(sent >= payload for sent in ours.sent_bytes)
