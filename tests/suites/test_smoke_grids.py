"""Every suite's `--smoke`: all of its cells can run, and one cell of each kind does, with fewer steps."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from functools import cache

import pytest

from harness.bench import Bench
from harness.checks.trial import check
from harness.trial import Trial
from results.record import Status
from suites.api import Options
from suites.catalogue import all_suites

SHORT_ROWS_S = 0.002  # of a timed collective: its smallest sizes


def kind_of(trial: Trial) -> Hashable:
    """What decides which code carries the trial: fabric, and who trains or solves what in which way."""
    work: Hashable = (trial.problem is not None, type(trial.traffic), trial.collective is not None)
    if trial.jobs:
        job = trial.jobs[0]
        own = job.resolve().exchange.card.name if job.system == "ours" else job.system.partition("(")[0]
        work = (own, trial.is_pipelined, trial.is_split, trial.sharing is not None, trial.cluster is not None)
    return trial.fabric.kind, trial.fabric.num_virtual > 0, work


def smoke_of(suite: str) -> list[Trial]:
    return list(all_suites()[suite].grid(Options(smoke=True)))


@cache
def covering() -> dict[str, list[Trial]]:
    """By suite: a trial of each kind that no suite before it has shown, and one at least."""
    seen: set[Hashable] = set()
    found: dict[str, list[Trial]] = {}
    for suite in all_suites():
        trials = {kind_of(trial): trial for trial in reversed(smoke_of(suite))}
        new = [trial for kind, trial in trials.items() if kind not in seen]
        found[suite] = new or list(trials.values())[-1:]
        seen |= trials.keys()
    return found


def shortened(trial: Trial) -> Trial:
    if trial.collective is not None:
        return replace(trial, collective=replace(trial.collective, most_s=SHORT_ROWS_S))
    return replace(trial, num_steps=min(trial.num_steps, 2)) if trial.fabric.kind.has_processes else trial


@pytest.mark.parametrize("suite", all_suites())
def test_every_cell_of_a_smoke_grid_can_run(suite: str) -> None:
    trials = smoke_of(suite)
    assert trials
    for trial in trials:
        check(trial)


@pytest.mark.parametrize("suite", all_suites())
def test_a_smoke_keeps_every_size_of_the_baseline_that_ratios_are_taken_against(suite: str) -> None:
    """With the untuned size alone, everything would look faster than it is."""

    def baselines(trials: Iterable[Trial]) -> set[str]:
        sizes = {trial.cell: trial.jobs[0].system for trial in trials if len(trial.jobs) == 1}
        return {cell for cell, system in sizes.items() if system.startswith("torch-ddp(bucket_mb=")}

    kept = baselines(smoke_of(suite))
    places = {cell.rpartition("/")[0] for cell in kept}
    left_out = baselines(all_suites()[suite].grid(Options())) - kept
    assert {cell for cell in left_out if cell.rpartition("/")[0] in places} == set()


@pytest.mark.slow
@pytest.mark.parametrize("suite", all_suites())
def test_a_smoke_cell_of_each_kind_runs(suite: str, bench: Bench) -> None:
    records = [bench.run(shortened(trial)) for trial in covering()[suite]]
    # Skipped, with the reason: a library or a device that this machine lacks.
    failed = {record.cell: record.reason for record in records if record.status not in (Status.OK, Status.SKIPPED)}
    assert failed == {}
