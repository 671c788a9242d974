"""Two jobs on the same hosts, real processes: each trains as if it were alone."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO
from logging import LogRecord
from pathlib import Path
from queue import SimpleQueue

import pytest
from patience import patience_s
from small_network import NAME

from crossover import Alone, ArbiterLost, Beat, CrossoverError, Lease, LeaseLost, Sharing
from fabric.api import FabricKind, FabricSpec
from harness.bench import Bench
from harness.engine.link_turns import LinkTurns
from harness.lab.messages import Ending, Task, event_from, to_line
from harness.lab.process import Lab
from harness.predict.layers import layers_of_workload
from harness.trial import Job, Link, Trial
from models.workload import Device, WorkloadSpec
from results.record import Record, Status

pytestmark = pytest.mark.slow

FABRIC = FabricSpec(kind=FabricKind.NATIVE, num_hosts=2, rate_bps=None)
SMALL = WorkloadSpec(network=NAME, batch_size=4)
REPLAYED = WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=400, batch_size=8)
BUCKETS = "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)"


def two_jobs(sharing: Sharing, *, workload: WorkloadSpec = SMALL, system: str = "ours", **trial: object) -> Trial:
    jobs = tuple(Job(name=name, workload=workload, system=system, strategy=BUCKETS) for name in ("a", "b"))
    asked: dict[str, object] = {"num_warmup": 1, "num_steps": 3, "timeout_s": patience_s(50.0), **trial}
    return Trial(suite="test", cell=f"test/{sharing}", jobs=jobs, fabric=FABRIC, sharing=sharing, **asked)  # type: ignore[arg-type]


RULES: dict[Sharing, dict[str, object]] = {
    Sharing.WEIGHTED: {"shares": (2, 1)},
    Sharing.MURI: {"groups": (("a", "b"),)},
    Sharing.CASSINI: {"beats": (Beat(0.0, 0.1), Beat(0.05, 0.1))},
}


def digests(record: Record) -> set[str]:
    assert record.status is Status.OK, record.reason
    return {job.weights_digest for job in record.jobs}


@pytest.fixture(scope="module")
def solo_digest(bench: Bench) -> str:
    """The weights after the same steps of one job alone."""
    alone = Trial(
        suite="test",
        cell="test/solo",
        jobs=(Job(name="a", workload=SMALL, strategy=BUCKETS),),
        fabric=FABRIC,
        num_warmup=1,
        num_steps=3,
        timeout_s=patience_s(120.0),
    )
    (digest,) = digests(bench.run(alone))
    return digest


@pytest.mark.parametrize("sharing", sorted({*Sharing} - {Sharing.MPS, Sharing.EXCLUSIVE, Sharing.CROSSOVER}))
def test_shared_jobs_end_with_the_weights_of_their_solo_run_bit_for_bit(
    sharing: Sharing, solo_digest: str, bench: Bench
) -> None:
    assert digests(bench.run(two_jobs(sharing, **RULES.get(sharing, {})))) == {solo_digest}


def test_a_fair_link_changes_no_weights_either(solo_digest: str, bench: Bench) -> None:
    assert digests(bench.run(two_jobs(Sharing.CROSSOVER, link=Link.FAIR))) == {solo_digest}


def test_torch_ddp_shares_in_turns_too(solo_digest: str, bench: Bench) -> None:
    assert digests(bench.run(two_jobs(Sharing.CROSSOVER, system="torch-ddp"))) == {solo_digest}


def test_costs_of_the_exclusive_trial_predict_the_others(solo_digest: str, bench: Bench) -> None:
    """And these two change no weights either."""
    exclusive = bench.run(two_jobs(Sharing.EXCLUSIVE, num_cost_steps=2))
    crossover = bench.run(two_jobs(Sharing.CROSSOVER))
    assert digests(exclusive) == digests(crossover) == {solo_digest}
    assert exclusive.prediction is not None
    assert crossover.prediction is not None
    assert crossover.prediction.period_s == exclusive.prediction.period_s
    assert exclusive.prediction.expected_gain is None
    assert crossover.prediction.expected_period_s >= crossover.prediction.period_s
    assert crossover.sharing_facts is not None
    assert crossover.sharing_facts.num_handovers > 0
    assert 0 < crossover.sharing_facts.device_busy <= 1
    assert exclusive.prediction.gain is not None
    assert exclusive.prediction.gain <= 2.0 + 1e-9
    assert exclusive.makespan_s == pytest.approx(sum(job.end_s - job.start_s for job in exclusive.jobs))


def test_replayed_jobs_together_divide_the_device(bench: Bench) -> None:
    """Twice the device time takes twice as long, however it is cut: never less than both need."""
    together = bench.run(two_jobs(Sharing.NAIVE, workload=REPLAYED, num_steps=4))
    assert together.status is Status.OK, together.reason
    layers = layers_of_workload(REPLAYED)
    assert together.makespan_s is not None
    assert together.makespan_s >= 2 * 4 * (layers.forward_s + layers.backward_s)


def test_a_trial_that_is_ended_in_mid_turn_leaves_the_lab_fit_for_the_next(solo_digest: str, bench: Bench) -> None:
    """The lab has started before, for a job alone: else that counts in the short time here. Replayed, turns are long
    and cost the processor little."""
    workload = replace(REPLAYED, batch_size=64)
    ended = bench.run(two_jobs(Sharing.CROSSOVER, workload=workload, num_steps=1_000_000, timeout_s=patience_s(1.5)))
    assert ended.status is Status.TIMEOUT
    assert re.search(r"job [ab] rank [01] at step \d", ended.reason), ended.reason
    assert digests(bench.run(two_jobs(Sharing.CROSSOVER))) == {solo_digest}


def test_an_arbiter_that_cannot_start_is_an_error_and_no_skipped_cell(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 100)  # more than a Unix socket's path may have
    long.mkdir()
    asked, answered = BytesIO(to_line(Task(trial=two_jobs(Sharing.CROSSOVER)))), BytesIO()
    Lab(asked, answered, long).serve()
    answer = event_from(answered.getvalue()).answer
    assert answer is not None
    assert answer.ending is Ending.FAILED
    assert "longer than 107 bytes: use a shorter folder" in answer.reason


class Recorded(Alone):
    """A link that notes what is done with it."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def acquire(self) -> Lease:
        self.events.append("acquire")
        return super().acquire()

    def release(self, lease: Lease) -> None:
        self.events.append("release")

    def leave(self) -> None:
        self.events.append("leave")


def test_link_turns_grant_release_and_leave_in_order() -> None:
    link, granted = Recorded(), SimpleQueue[CrossoverError | None]()
    turns = LinkTurns(link)
    for _ in range(3):
        turns.request(granted.put)
        assert granted.get(timeout=patience_s(5)) is None
        turns.release()
    turns.leave()
    assert link.events == ["acquire", "release"] * 3 + ["leave"]


class Failing(Recorded):
    """A link whose releases end with `error`."""

    def __init__(self, error: CrossoverError) -> None:
        super().__init__()
        self._error = error

    def release(self, lease: Lease) -> None:
        super().release(lease)
        raise self._error


def test_after_a_link_turn_that_was_withdrawn_there_are_others(logged: list[LogRecord]) -> None:
    link, granted = Failing(LeaseLost("withdrawn after 1 s")), SimpleQueue[CrossoverError | None]()
    turns = LinkTurns(link)
    for _ in range(2):
        turns.request(granted.put)
        assert granted.get(timeout=patience_s(5)) is None
        turns.release()
    turns.leave()
    assert link.events == ["acquire", "release"] * 2 + ["leave"]
    assert any("withdrawn after 1 s" in record.getMessage() for record in logged)


def test_an_arbiter_that_is_lost_at_a_release_reaches_whoever_asks_next() -> None:
    link, granted = Failing(ArbiterLost("the arbiter went away")), SimpleQueue[CrossoverError | None]()
    turns = LinkTurns(link)
    turns.request(granted.put)
    assert granted.get(timeout=patience_s(5)) is None
    turns.release()
    for _ in range(2):
        turns.request(granted.put)
        assert isinstance(granted.get(timeout=patience_s(5)), ArbiterLost)
    turns.leave()
    assert link.events == ["acquire", "release", "leave"]


def test_a_lost_arbiter_reaches_whoever_asked_for_the_link() -> None:
    class Lost(Recorded):
        def acquire(self) -> Lease:
            raise ArbiterLost("the arbiter went away")

    granted = SimpleQueue[CrossoverError | None]()
    turns = LinkTurns(Lost())
    turns.request(granted.put)
    assert isinstance(granted.get(timeout=patience_s(5)), ArbiterLost)
    turns.leave()
