"""The suite `convergence`: its grid, and trials side by side."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from concurrent import futures
from concurrent.futures import Future

import pytest
from patience import patience_s

from fabric.api import FabricKind
from harness.checks.trial import check
from harness.lab.messages import Answer, Ending
from harness.outcome import Background, record_of
from harness.trial import Trial, TrialError
from models.workload import Device
from results.record import Environment, Record
from suites.api import Options
from suites.at_once import num_at_once, run_each
from suites.convergence import grid as convergence
from suites.convergence.grid import METHODS, SUITE, TrainingMethod, skipped_methods
from suites.expected import expected_s

LONGEST_RUN_S = 75 * 60.0


def test_every_method_of_the_table_can_be_read_and_every_cell_be_run() -> None:
    trials = SUITE.grid(Options())
    assert skipped_methods() == {}
    assert len({trial.id for trial in trials}) == len(trials)
    for cell in {trial.cell: trial for trial in trials}.values():
        check(cell)
    assert {trial.fabric.kind for trial in trials} == {FabricKind.LOCKSTEP}
    assert {trial.cell.rpartition("/")[2] for trial in trials} == {method.name for method in METHODS}


def test_local_steps_are_evaluated_after_whole_periods() -> None:
    for trial in SUITE.grid(Options(strategies=("sbc(density=0.01)+error-feedback+local-steps(n=10)",))):
        assert trial.evaluate_every % 10 == 0
        check(trial)


def test_a_method_that_is_not_there_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = TrainingMethod("to come", "fixed-buckets+yet-to-be-written", "nowhere")
    monkeypatch.setattr(convergence, "METHODS", (*METHODS, unknown))
    assert "yet-to-be-written" in skipped_methods()["to come"]
    assert len(SUITE.grid(Options())) == len({trial.id for trial in SUITE.grid(Options())})
    assert not any("to come" in trial.cell for trial in SUITE.grid(Options()))


def test_ten_seeds_and_a_batch_that_does_not_depend_on_the_number_of_ranks() -> None:
    trials = SUITE.grid(Options())
    assert set(Counter(trial.cell for trial in trials).values()) == {10}
    assert {trial.seed for trial in trials} == set(range(1, 11))
    assert {trial.world for trial in trials} == {2, 4, 8}
    batches: dict[str, set[int]] = {}
    for trial in trials:
        workload = trial.jobs[0].workload
        batches.setdefault(workload.network, set()).add(workload.batch_size * trial.world)
    assert {network: len(sizes) for network, sizes in batches.items()} == dict.fromkeys(batches, 1)
    assert set(batches) == {"resnet20", "lstm_lm", "bert_tiny"}


def test_two_cores_are_done_within_an_hour_and_a_quarter() -> None:
    assert sum(map(expected_s, SUITE.grid(Options()))) / 2 <= LONGEST_RUN_S
    assert sum(map(expected_s, SUITE.grid(Options(smoke=True)))) < 60


def test_real_sizes_are_for_a_gpu() -> None:
    networks = {trial.jobs[0].workload.network for trial in SUITE.grid(Options(device=Device.CUDA, repeats=1))}
    assert networks >= {"resnet50", "bert_base"}


def test_hosts_steps_rate_and_strategies_of_the_command_line() -> None:
    asked = Options(num_hosts=16, num_steps=50, rate_bps=1e9, rate_given=True, strategies=("unfused",), repeats=1)
    trials = SUITE.grid(asked)
    assert {(t.world, t.num_warmup + t.num_steps, t.fabric.rate_bps) for t in trials} == {(16, 50, 1e9)}
    assert {trial.jobs[0].strategy for trial in trials} == {"unfused"}
    with pytest.raises(TrialError, match="3 ranks"):
        SUITE.grid(Options(num_hosts=3))


def trials(count: int) -> list[Trial]:
    return list(SUITE.grid(Options(smoke=True, repeats=count)))[:count]


def ended(trial: Trial) -> Record:
    return record_of(trial, Answer(ending=Ending.FAILED, reason="not run"), Background(Environment()))


def test_trials_without_a_clock_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    meeting, stopped = threading.Barrier(2), threading.Event()

    def run(trial: Trial) -> Record:
        meeting.wait(patience_s(10))  # returns only if two are under way
        return ended(trial)

    asked = trials(4)
    assert num_at_once(asked) == 2
    found = list(run_each(asked, run, stopped.set))
    assert {trial.id for trial, _ in found} == {trial.id for trial in asked}
    assert all(record.id == trial.id for trial, record in found)
    assert stopped.is_set()


def test_an_interrupt_keeps_what_is_complete_and_ends_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    first, second = trials(2)
    interrupted = threading.Event()

    def run(trial: Trial) -> Record:
        if trial.id == second.id:
            interrupted.wait(patience_s(10))  # as a lab does that is killed
        return ended(trial)

    def wait_and_interrupt(running: Iterable[Future[Record]], **_: object) -> None:
        futures.wait(running, return_when=futures.FIRST_COMPLETED)
        raise KeyboardInterrupt

    monkeypatch.setattr("suites.at_once.wait", wait_and_interrupt)
    kept: list[tuple[Trial, Record]] = []
    with pytest.raises(KeyboardInterrupt):
        kept.extend(run_each([first, second], run, interrupted.set))
    assert [trial.id for trial, _ in kept] == [first.id]
    assert interrupted.is_set()
