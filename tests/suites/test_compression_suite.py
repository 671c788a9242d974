"""The suite `compression`: every method once, fair rivals beside it, and short enough to be run."""

from __future__ import annotations

from collections import Counter

import pytest

from baselines.strategy import parse_strategy
from harness.checks.trial import check
from harness.predict.codecs import Charge, charge_of
from harness.trial import Trial
from models.workload import Device
from suites.api import FEWEST, Options
from suites.compression.grid import (
    BUCKETS,
    COURSES,
    NOT_HERE,
    OTHER_RATES_BPS,
    REPLAYED,
    RIVALS,
    SUITE,
    SYSTEMS,
    methods_of,
    skipped_methods,
)
from suites.convergence.grid import METHODS
from suites.expected import expected_each_s

LONGEST_SMOKE_S = 100.0


@pytest.fixture(scope="module")
def trials() -> list[Trial]:
    return list(SUITE.grid(Options()))


@pytest.fixture(scope="module")
def cells(trials: list[Trial]) -> dict[str, Trial]:
    return {trial.cell: trial for trial in trials if trial.repeat == 0}


def group(trial: Trial) -> str:
    return trial.cell.split("/")[0]


def name(trial: Trial) -> str:
    return trial.cell.split("/")[2]


def test_every_method_of_the_table_is_read_and_none_is_left_out() -> None:
    assert skipped_methods() == {}
    rivals = {method.name for method in RIVALS}
    wanted = {method.name for method in METHODS} - set(NOT_HERE) | {"PowerSGD rank 1"} | rivals
    assert {method.name for method in methods_of(COURSES[0])} == wanted
    for course in COURSES[1:]:
        assert {method.name for method in methods_of(course)} == set(course.methods)


def test_every_cell_can_be_run_has_a_name_of_its_own_and_as_many_repeats_as_seeds(trials: list[Trial]) -> None:
    assert len({trial.id for trial in trials}) == len(trials)
    for trial in trials:
        if trial.repeat == 0:
            check(trial)
    assert set(Counter(trial.cell for trial in trials).values()) == {FEWEST}
    assert {trial.seed - trial.repeat for trial in trials} == {1}


def test_trained_cells_are_evaluated_and_their_names_end_with_the_method(cells: dict[str, Trial]) -> None:
    trained = [trial for trial in cells.values() if group(trial) == "converge"]
    assert {trial.jobs[0].workload.network for trial in trained} == {"resnet20", "lstm_lm", "bert_tiny"}
    assert all(trial.evaluate_every and trial.fabric.rate_bps == 200e6 and trial.world == 2 for trial in trained)
    for network in ("resnet20", "lstm_lm", "bert_tiny"):
        own = {name(trial) for trial in trained if trial.jobs[0].workload.network == network}
        assert {"dense", "fp16", "top-k 1 %", "QSGD 4 bit"} <= own


def test_every_method_and_system_runs_on_every_link_in_the_same_words(cells: dict[str, Trial]) -> None:
    def texts(where: str) -> dict[str, tuple[str, str]]:
        return {
            name(t): (t.jobs[0].strategy, t.jobs[0].system)
            for t in cells.values()
            if group(t) == where and t.jobs[0].workload.network == "resnet20"
        }

    home = texts("converge")
    assert set(SYSTEMS) <= set(home)
    groups = ["unshaped" if rate is None else f"rate-{rate / 1e6:g}" for rate in OTHER_RATES_BPS]
    assert [texts(where) for where in groups] == [home] * len(groups)


def test_a_warm_up_is_over_before_steps_are_timed(cells: dict[str, Trial]) -> None:
    for trial in cells.values():
        job = trial.jobs[0]
        if job.system == "ours":
            compression = parse_strategy(f"{job.strategy}+{job.optimizer}").compression
            warm = max(getattr(compression, "warmup_steps", 0), getattr(compression, "steps", 0))
            assert warm <= trial.num_warmup, trial.cell


def test_every_method_has_one_packing_and_what_it_has_to_beat_a_second_one(cells: dict[str, Trial]) -> None:
    real = [t for t in cells.values() if t.jobs[0].workload.device is not Device.REPLAY and t.jobs[0].system == "ours"]
    packed = {name(trial) for trial in real if trial.jobs[0].strategy.startswith(BUCKETS)}
    assert {name(trial) for trial in real} - packed == {"dense, one message", "fp16, one message"}


def test_all_compression_in_replay_is_charged_for(cells: dict[str, Trial]) -> None:
    replayed = [trial for trial in cells.values() if trial.jobs[0].workload.device is Device.REPLAY]
    assert {trial.jobs[0].workload.network for trial in replayed} == {"resnet50", "vgg16", "bert_base"}
    assert {trial.num_ranks for trial in replayed} == {2, 8, 64}
    for trial in replayed:
        if name(trial) not in ("dense", "local"):
            assert isinstance(charge_of(trial.jobs[0], trial.num_ranks), Charge), trial.cell


def test_every_replayed_place_has_float32_and_one_host_alone(cells: dict[str, Trial]) -> None:
    places: dict[tuple[str, str], set[str]] = {}
    for trial in cells.values():
        if group(trial).startswith("replay"):
            places.setdefault((group(trial), trial.jobs[0].workload.network), set()).add(name(trial))
    assert places
    assert all({"dense", "local"} <= names for names in places.values())


def test_the_predicted_grid_holds_every_method_on_every_link() -> None:
    assert SUITE.predicted is not None
    found = Counter(name(trial) for trial in SUITE.predicted(Options()))
    assert set(found) == set(REPLAYED)
    assert set(found.values()) == {15}


def test_six_repeats_are_expected_to_fit_the_budget_and_smoke_takes_less_than_two_minutes(trials: list[Trial]) -> None:
    assert sum(expected_each_s(trials, foresees=True)) <= SUITE.budget_s
    smoke = list(SUITE.grid(Options(smoke=True)))
    for trial in smoke:
        check(trial)
    assert sum(expected_each_s(smoke, foresees=True)) <= LONGEST_SMOKE_S
    assert {group(trial).partition("-")[0] for trial in smoke} == {"converge", "rate", "unshaped", "replay"}


def test_strategies_of_the_command_line_take_the_table_s_place() -> None:
    asked = Options(strategies=("fixed-buckets+half",), repeats=1)
    found = list(SUITE.grid(asked))
    assert {trial.jobs[0].strategy for trial in found if trial.jobs[0].system == "ours"} == {"fixed-buckets+half"}
    for trial in found:
        check(trial)
