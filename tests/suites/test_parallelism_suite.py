"""The suite parallelism: every cell can be asked for, and its claims are judged from records alone."""

from collections import Counter

import pytest

from analysis.claims import Outcome
from analysis.summary import summarise
from harness.checks.trial import check
from harness.lab.messages import Answer, Ending
from harness.lab.rank import Signals
from harness.outcome import Background, record_of
from harness.parallel.trial_clock import run_pipelines_on_clock
from harness.splits.split_trial import run_split_in_process
from harness.trial import Trial
from models.values import Device
from results.record import Environment, Record
from suites.api import Options
from suites.parallelism.grid import grid
from suites.parallelism.study import STUDY


def test_every_cell_of_the_smoke_grid_can_run_and_stands_once_per_repeat() -> None:
    trials = grid(Options(smoke=True))
    for trial in trials:
        check(trial)
    assert max(Counter(trial.id for trial in trials).values()) == 1
    pairs = {"two-jobs-clock-4", "two-jobs-clock-8", "two-jobs-found-clock"}
    assert {trial.cell.partition("/")[0] for trial in trials} - pairs == {
        *("clock", "clock-4", "clock-16"),
        *("planned-1gbit", "learning"),
        *("splits-10gbit", "split-learning"),
    }


def _timed(trial: Trial) -> bool:
    return not trial.fabric.kind.has_processes and all(job.workload.device is Device.REPLAY for job in trial.jobs)


def _record(trial: Trial) -> Record:
    run = run_split_in_process if trial.is_split else run_pipelines_on_clock
    answer = Answer(ending=Ending.DONE, ranks=tuple(run(trial, Signals(lambda: None))))
    return record_of(trial, answer, Background(Environment()))


def test_claims_are_judged_from_the_clocks_records_and_the_rest_is_told_as_not_measured() -> None:
    trials = [trial for trial in grid(Options(smoke=True)) if _timed(trial) and trial.sharing is None]
    summary = summarise([_record(trial) for trial in trials], studies=(STUDY,))
    outcome = {claim.claim.partition(" ")[0]: claim.outcome for claim in summary.claims}
    assert outcome["GPipe"] is Outcome.MISSED  # (K − 1)/(M + K − 1) is 16 % for 16 micro-batches and 4 stages
    assert outcome["DAPPLE"] is Outcome.MET
    assert outcome["Every"] is Outcome.MET
    assert outcome["Tofu"] is Outcome.MET
    assert outcome["HyPar"] is Outcome.MET  # of the smoke grid's VGG-16; other networks differ
    assert outcome["Mesh-TensorFlow"] is Outcome.NOT_MEASURED
    assert outcome["Ours"] is Outcome.NOT_MEASURED


@pytest.mark.parametrize("repeats", [2])
def test_seeds_of_the_learning_cells_differ_by_repeat_and_not_by_method(repeats: int) -> None:
    trials = [trial for trial in grid(Options(smoke=True, repeats=repeats)) if trial.cell.startswith("learning")]
    assert {trial.seed for trial in trials if trial.repeat == 0} == {1}
    assert {trial.seed for trial in trials if trial.repeat == 1} == {2}
