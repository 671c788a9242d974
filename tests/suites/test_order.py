"""The order of trials within a run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import pytest

from crossover import Sharing
from fabric.api import FabricKind
from harness.trial import Trial
from suites.api import Options
from suites.catalogue import all_suites, suite_of
from suites.order import in_random_order


@pytest.fixture(scope="module")
def quick() -> list[Trial]:
    return list(suite_of("quick").grid(Options(repeats=3)))


def test_the_same_trials_run_repeat_by_repeat_in_another_order_each_time(quick: list[Trial]) -> None:
    found = in_random_order(quick, seed=1)
    assert sorted(trial.id for trial in found) == sorted(trial.id for trial in quick)
    assert [trial.repeat for trial in found] == [trial.repeat for trial in quick]
    orders = [[trial.cell for trial in found if trial.repeat == repeat] for repeat in range(3)]
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] != [trial.cell for trial in quick if trial.repeat == 0]


def test_what_is_compared_runs_next_to_each_other(quick: list[Trial]) -> None:
    """All cells of a place in one stretch, in each repeat: a machine that drifts has less time to."""
    found = in_random_order(quick, seed=1)
    places = [(trial.repeat, trial.fabric, tuple(job.workload for job in trial.jobs)) for trial in found]
    stretches = [place for place, _ in itertools.groupby(places)]
    assert len(stretches) == len(set(places)) < len(found)
    orders = [[place[1:] for place in stretches if place[0] == repeat] for repeat in range(3)]
    assert orders[0] != orders[1] or orders[1] != orders[2]


def test_a_seed_decides_the_order(quick: list[Trial]) -> None:
    assert in_random_order(quick, seed=1) == in_random_order(quick, seed=1)
    assert in_random_order(quick, seed=1) != in_random_order(quick, seed=2)


@pytest.mark.parametrize("name", ["quick", "crossover"])
def test_jobs_run_exclusively_before_they_share(name: str) -> None:
    """Costs measured alone are what the other policies get their settings and predictions from."""
    measured: set[object] = set()
    for trial in in_random_order(suite_of(name).grid(Options()), seed=3):
        alike = tuple(replace(job, num_steps=None, start_phase=0.0) for job in trial.jobs), trial.fabric, trial.repeat
        if trial.sharing is Sharing.EXCLUSIVE:
            measured.add(alike)
        elif trial.sharing is not None and alike in wanted(name):
            assert alike in measured, trial.cell


@cache
def wanted(name: str) -> set[object]:
    """What some trial of the suite measures alone."""
    return {
        (tuple(replace(job, num_steps=None, start_phase=0.0) for job in trial.jobs), trial.fabric, trial.repeat)
        for trial in suite_of(name).grid(Options())
        if trial.sharing is Sharing.EXCLUSIVE
    }


def test_what_has_no_clock_keeps_its_order() -> None:
    untimed = [suite for suite in all_suites().values() if suite.fabric is FabricKind.LOCKSTEP]
    assert untimed
    for suite in untimed:
        trials = list(suite.grid(Options(smoke=True)))
        assert in_random_order(trials, seed=1) == trials
