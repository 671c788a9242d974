"""Which trials count: what the machine did meanwhile, held against limits that were set beforehand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from harness.machine import processor_times
from harness.validity import (
    BUSY,
    CODEC,
    LIMITS,
    OTHERS,
    SLOWER,
    STOLEN,
    EvidenceKind,
    evidence_of,
    is_worth_again,
    judged,
)
from results.charges import charged_s
from results.codec import from_jsonable, to_jsonable
from results.facts import ChargeFacts, MachineFacts, ProbeFacts
from results.record import FabricFacts, JobResult, Phases, RankTimes, Record, Status

QUIET = MachineFacts(
    before=ProbeFacts(speed_s=1e-3, load_1min=0.1),
    after=ProbeFacts(speed_s=1.05e-3, load_1min=0.3),
    busy_share=0.3,
    stolen_share=0.001,
    other_share=0.02,
    fastest_s=1e-3,
)
STEP_S = 0.5


def record(kind: str = "emulated", device: str = "replay", machine: MachineFacts | None = QUIET) -> Record:
    job = JobResult(
        name="job",
        workload="resnet50-replay",
        system="ours",
        strategy="fixed-buckets",
        device=device,
        batch_size=32,
        num_steps=2,
        num_parameters=1000,
        ranks=(RankTimes(rank=0, warmup_s=(1.0,), steps_s=(STEP_S, STEP_S)),),
    )
    hosts = (1, 1) if kind == "paced" else (2, 0)
    fabric = FabricFacts(kind=kind, label=kind, num_hosts=hosts[0], num_virtual=hosts[1], size_scale=50)
    return Record(
        id="s.c.r00",
        suite="s",
        cell="g/w/c",
        repeat=0,
        seed=1,
        status=Status.OK,
        fabric=fabric,
        jobs=(job,),
        machine=machine,
    )


@pytest.mark.parametrize("kind", ["emulated", "paced", "native"])
@pytest.mark.parametrize("device", ["replay", "cpu"])
def test_a_trial_on_a_quiet_machine_counts_and_says_what_was_found(kind: str, device: str) -> None:
    found = judged(record(kind, device))
    assert (found.status, found.reason) == (Status.OK, "")
    paced = (kind, device) == ("paced", "replay")  # its waits do not depend on the processor's speed
    assert {check.quantity for check in found.checks} >= {STOLEN, OTHERS} | (set() if paced else {SLOWER})
    assert all(check.passes for check in found.checks)
    assert from_jsonable(Record, to_jsonable(found)) == found


@pytest.mark.parametrize(
    ("changed", "quantity"),
    [
        ({"other_share": 0.9}, OTHERS),
        ({"stolen_share": 0.2}, STOLEN),
        ({"busy_share": 0.8}, BUSY),
        ({"after": ProbeFacts(speed_s=2e-3, load_1min=2.0)}, SLOWER),
        ({"before": ProbeFacts(speed_s=2e-3, load_1min=2.0)}, SLOWER),
    ],
)
def test_a_disturbed_trial_is_invalid_with_the_reason(changed: dict[str, object], quantity: str) -> None:
    found = judged(record(machine=replace(QUIET, **changed)))  # type: ignore[arg-type]
    assert found.status is Status.INVALID
    assert found.reason.startswith(f"{quantity}: ")
    assert [check.quantity for check in found.checks if not check.passes] == [quantity]
    assert found.jobs == record().jobs  # kept whole
    assert is_worth_again(found)


def test_real_computation_may_use_its_own_cores_and_paced_replay_may_stand_beside_other_work() -> None:
    """Two ranks that compute keep two cores busy; on the paced fabric waits are slept."""
    assert judged(record(device="cpu", machine=replace(QUIET, busy_share=1.0))).status is Status.OK
    beside = replace(QUIET, busy_share=0.6, other_share=0.5)
    assert judged(record("paced", machine=beside)).status is Status.OK
    assert judged(record("emulated", machine=beside)).status is Status.INVALID
    several = replace(record("paced"), fabric=replace(record("paced").fabric, num_hosts=2))
    assert judged(several).status is Status.OK
    assert judged(replace(several, machine=beside)).status is Status.INVALID
    assert judged(record("paced", "cpu", machine=beside)).status is Status.INVALID


@pytest.mark.parametrize("clock", ["virtual", "predicted", "none"])
def test_what_is_exact_has_no_limits(clock: str) -> None:
    (job,) = record().jobs
    exact = replace(record(machine=replace(QUIET, other_share=1.0)), jobs=(replace(job, clock=clock),))
    assert evidence_of(exact) is None
    assert judged(exact) == exact
    lockstep = replace(exact, fabric=replace(exact.fabric, kind="lockstep"))
    assert judged(lockstep) == lockstep


def test_a_codec_that_works_longer_than_it_is_charged_is_this_machine_s_work() -> None:
    """50,000 real elements at 2 µs each are charged 0.1 s per step of 0.5 s; 0.11 s are 2 % of the step too much."""
    charge = ChargeFacts(method="topk", stages_s=(1.5e-6, 0.5e-6), device="V100", num_ranks=4)
    assert charged_s(charge, 50_000) == pytest.approx(0.1)
    assert charged_s(replace(charge, merge_s=1e-6), 50_000) == pytest.approx(0.2)  # four ranks merge twice

    def found(kind: str, compress_s: float, charge: ChargeFacts) -> Record:
        one = record(kind)
        job = replace(one.jobs[0], charge=charge, phases=Phases(compress_s=compress_s))
        return judged(replace(one, jobs=(job,)))

    def status(kind: str, compress_s: float, charge: ChargeFacts) -> Status:
        return found(kind, compress_s, charge).status

    assert status("emulated", 0.11, charge) is Status.OK
    assert status("paced", 0.11, charge) is Status.INVALID
    assert not is_worth_again(found("paced", 0.11, charge))  # it would take as long the next time
    assert status("emulated", 0.12, charge) is Status.INVALID
    assert status("paced", 0.08, charge) is Status.OK
    assert status("emulated", 0.02, ChargeFacts(reason="no profile")) is Status.INVALID
    assert CODEC in {check.quantity for check in judged(record("paced")).checks}


def test_a_trial_that_failed_stays_a_failure() -> None:
    failed = replace(record(machine=replace(QUIET, other_share=1.0)), status=Status.ERROR, reason="a rank died")
    assert (judged(failed).status, judged(failed).reason) == (Status.ERROR, "a rank died")


def test_every_kind_of_evidence_has_limits_that_can_be_kept_and_can_be_broken() -> None:
    assert set(LIMITS) == set(EvidenceKind)
    for limits in LIMITS.values():
        assert 0 < limits.stolen < limits.others < 1
        assert limits.slower > 0


def test_processor_time_of_ended_children_is_the_run_s_own_and_that_of_strangers_is_not() -> None:
    """A child computes 0.2 s of processor time, however long that takes; the clock of processes ticks in 10 ms."""
    sleeper = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    strangers = psutil.Process(sleeper.pid)
    try:
        before, theirs = processor_times(psutil.Process(os.getpid())), processor_times(strangers)
        work = "import time\nwhile time.process_time() < 0.2: pass"
        subprocess.run([sys.executable, "-c", work], check=True)
        after = processor_times(psutil.Process(os.getpid()))
        assert after.own_s - before.own_s >= 0.16  # four counters, each rounded to a tick
        assert after.processes_s - before.processes_s >= 0.15  # ticks of processors and processes are not the same
        beside = processor_times(strangers)
        assert beside.own_s - theirs.own_s < 0.1  # its own start, at most
    finally:
        sleeper.communicate()
