"""The papers' own problems as trials: what is asked, what a record holds, figures and claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from analysis.claims import Outcome
from analysis.figures import drawings
from analysis.problems.rows import ProblemRow, has_diverged
from analysis.report import render_page
from analysis.stats import Interval
from fabric.api import FabricKind, FabricSpec
from harness.checks.trial import check
from harness.problems.asked import BlockedLasso, Problem, ProblemError, SparseLogistic
from harness.problems.solving import problem_record, solve
from harness.trial import Trial, TrialError
from harness.validity import evidence_of
from results.codec import from_jsonable, to_jsonable
from results.record import Environment, Record, Status
from scripts import recompute_claims as again
from suites.api import Options
from suites.consistency.grid import grid
from suites.consistency.problems import problem_cells
from suites.reports import summary_of

SMALL = BlockedLasso(num_workers=8, num_rounds=30, num_samples=60, num_parameters=60, num_used=4, num_alike=10)
FEW = SparseLogistic(num_workers=2, num_rounds=2, num_samples=200, num_features=100)


def asked(problem: Problem, kind: FabricKind = FabricKind.LOCKSTEP) -> Trial:
    return Trial(
        suite="consistency",
        cell="lasso-alike/problem/petuum",
        jobs=(),
        fabric=FabricSpec(kind=kind, num_hosts=1, rate_bps=None),
        problem=problem,
    )


def test_a_descent_repeats_by_its_seed_which_draws_the_problem() -> None:
    first = solve(asked(SMALL))
    assert first == solve(asked(SMALL))
    assert first.objectives != solve(replace(asked(SMALL), seed=2)).objectives
    assert len(first.objectives) == 30
    assert first.objectives[-1] < first.objectives[0]
    assert first.seconds is None


def test_one_worker_without_locks_is_exact_and_several_come_near() -> None:
    serial = solve(asked(replace(FEW, num_workers=1), FabricKind.NATIVE))
    assert serial.objectives == solve(asked(replace(FEW, num_workers=1), FabricKind.NATIVE)).objectives
    several = solve(asked(FEW, FabricKind.NATIVE))
    assert several.objectives[-1] == pytest.approx(serial.objectives[-1], rel=0.05)
    assert several.seconds is not None


def test_a_descent_that_diverges_ends_there_and_says_so() -> None:
    """Thirty alike columns at once, whose steps add up: what the check of dependencies is for."""
    wild = BlockedLasso(num_workers=16, strategy="petuum(coupling=1)", num_rounds=400)
    run = solve(asked(wild)).objectives
    assert has_diverged(run)
    assert run.count(math.inf) == 1
    assert len(run) < 400
    assert not has_diverged(solve(asked(replace(wild, strategy="petuum"))).objectives)


@pytest.mark.parametrize("problem", [SMALL, FEW])
def test_a_record_survives_being_written(problem: Problem) -> None:
    trial = asked(problem, FabricKind.NATIVE)
    record = problem_record(trial, Environment())
    assert record.status is Status.OK
    assert from_jsonable(Record, to_jsonable(record)) == record
    assert from_jsonable(Trial, record.trial) == trial
    assert evidence_of(record) is None  # a busy machine changes nothing that is asked for


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (replace(SMALL, strategy="hogwild"), "'hogwild' does not solve BlockedLasso; use 'petuum' alone"),
        (replace(FEW, strategy="hogwild+topk"), "use 'hogwild' alone"),
        (replace(SMALL, num_workers=61), "use 1 to 60"),
        (replace(FEW, num_workers=0), "num_workers is 0"),
        (replace(SMALL, num_rounds=0), "num_rounds is 0"),
        (replace(SMALL, num_alike=0), "num_alike is 0; use 1"),
        (replace(SMALL, num_used=61), "num_used is 61; use 0 to 60 of the parameters"),
        (replace(SMALL, mixing=1.5), "mixing is 1.5; use a share from 0 to 1"),
        (replace(FEW, num_nonzeros=FEW.num_features + 1), "num_nonzeros is .*; use 1 to"),
        (replace(FEW, rate=0.0), "rate is 0; use a learning rate above 0"),
    ],
)
def test_a_problem_that_cannot_be_is_refused_with_the_remedy(problem: Problem, message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        check(asked(problem))


def test_a_trial_has_jobs_or_a_problem() -> None:
    with pytest.raises(TrialError, match="or a problem"):
        replace(asked(SMALL), problem=None)


def test_the_suite_runs_them_unless_other_strategies_were_asked_for() -> None:
    cells = [trial for trial in grid(Options()) if trial.problem is not None]
    assert {trial.repeat for trial in cells} == set(range(10))
    assert {row.group for row in problem_rows_of(cells)} == {"sparse-logistic", "lasso-apart", "lasso-alike"}
    assert not [trial for trial in grid(Options(strategies=("bsp",))) if trial.problem is not None]
    for trial in cells:
        check(trial)


def problem_rows_of(cells: list[Trial]) -> list[ProblemRow]:
    """As records of two rounds."""
    return [made(trial.cell, {0: (1.0, 0.5)}) for trial in cells]


def made(cell: str, runs: dict[int, tuple[float, ...]]) -> ProblemRow:
    group, _, label = cell.split("/")
    return ProblemRow(suite="consistency", cell=cell, group=group, label=label, runs=runs, ids=("id",))


def test_figures_are_taken_repeat_by_repeat() -> None:
    quick = made("lasso/problem/a", {1: (8.0, 2.0, 1.0), 2: (8.0, 1.005, 1.0)})
    slow = made("lasso/problem/b", {1: (8.0, 4.0, 2.0), 2: (8.0, 4.0, 1.0), 3: (1.0,)})
    assert sorted(quick.final_over(slow).sample) == [0.5, 1.0]
    # one never comes near in repeat 1, and counts with all its rounds
    assert sorted(quick.rounds_over(slow).sample) == [pytest.approx(2 / 3), 1.0]


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """The suite's cells, made small, two seeds of each."""
    found = []
    for trial in problem_cells(1):
        asked_for: Problem
        if isinstance(trial.problem, SparseLogistic):
            asked_for = replace(FEW, num_workers=trial.problem.num_workers)
        else:
            assert trial.problem is not None
            asked_for = replace(SMALL, strategy=trial.problem.strategy, by_chance=trial.problem.by_chance)
        for repeat in range(2):
            one = replace(trial, problem=asked_for, repeat=repeat, seed=repeat)
            found.append(problem_record(one, Environment()))
    return found


def test_claims_are_judged_from_records_and_the_script_finds_the_same_figures(records: list[Record]) -> None:
    page = summary_of(records)
    judged = [row for row in page.claims if row.formula.value in again.SAMPLED and row.cells]
    assert len(judged) == 4
    by_id = {record.id: to_jsonable(record) for record in records}
    for row in judged:
        figure: Callable[..., again.Figures] = again.SAMPLED[row.formula.value]
        for cell in row.cells:
            value: Interval = cell.value
            values = figure(*([by_id[own] for own in ids] for ids in cell.of))
            assert sorted(values) == pytest.approx(sorted(value.sample), rel=1e-12), row.claim
    assert {row.outcome for row in page.claims if not row.cells} == {Outcome.NOT_MEASURED}


def test_the_report_draws_each_problem_once(records: list[Record]) -> None:
    page = summary_of(records)
    drawn = list(drawings(page))
    assert [one.name for one in drawn] == ["problems-lasso-alike", "problems-lasso-apart", "problems-sparse-logistic"]
    (axes,) = drawn[0].figure.axes
    assert len(axes.lines) == 4
    html = render_page(page, drawn)
    assert '<section id="problems">' in html
    assert 'id="throughput"' not in html
