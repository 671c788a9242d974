"""The suite gives every rule a rate from the search, every batch as many samples, and judges what seeds ended with."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from analysis.claims import Outcome
from analysis.study import Evidence
from analysis.targets.reached import CHANCE
from analysis.targets.rows import HeldOutEnd, TargetRow, TargetStudy
from harness.checks.trial import check
from harness.outcome import bare_record, fabric_facts
from results.codec import to_jsonable
from results.record import Environment, Status
from suites.api import Options
from suites.catalogue import SuiteError
from suites.largebatch.cells import BASE_BATCH, DIGITS, TASKS
from suites.largebatch.grid import ONE_HOUR, REPEATS, SUITE
from suites.largebatch.rates import chosen_rates, rate_of
from suites.largebatch.study import STUDY
from suites.largebatch_search import choose
from suites.largebatch_search.choose import choices
from suites.largebatch_search.grid import SUITE as SEARCH

ACCURACY = "LARS (You et al., 2017) ends above SGD scaled and warmed up at the largest batch"


def test_every_batch_sees_as_many_samples_with_the_same_seeds() -> None:
    trials = SUITE.grid(Options())
    assert len({trial.seed for trial in trials}) == REPEATS
    for trial in trials[: len(trials) // REPEATS]:
        check(trial)
        (job,) = trial.jobs
        assert trial.at == BASE_BATCH * job.accumulate
        task = next(task for task in TASKS if task.workload == job.workload)
        num_steps = trial.num_warmup + trial.num_steps
        assert abs(num_steps * trial.at - task.num_base_steps * BASE_BATCH) < trial.at


def test_the_largest_batch_is_the_largest_that_the_data_carries() -> None:
    num_images = 1797 - math.ceil(1797 / 5)
    assert num_images - BASE_BATCH < DIGITS.batches[-1] <= num_images


def test_every_rule_is_searched_with_the_same_budget() -> None:
    cells = [trial.cell.rpartition(" at ")[0] for trial in SEARCH.grid(Options())]
    assert {cells.count(cell) for cell in cells} == {5}
    assert {trial.seed for trial in SEARCH.grid(Options())}.isdisjoint(trial.seed for trial in SUITE.grid(Options()))


def test_rates_on_file_are_the_best_of_what_was_tried() -> None:
    for own in chosen_rates():
        ends = {float(rate): end for rate, end in own.tried.items() if end is not None}
        best = max if own.workload == DIGITS.workload.label else min
        assert ends[own.rate] == best(ends.values())


def test_the_recipe_scales_the_rate_of_the_base_batch_and_warms_up() -> None:
    cell = f"batch-256/{DIGITS.workload.label}/{ONE_HOUR}"
    text = next(trial.jobs[0].optimizer for trial in SUITE.grid(Options()) if trial.cell == cell)
    assert text == f"sgd(lr={rate_of(DIGITS, DIGITS.rules[0]):.6g})+linear-scaling(times=4.0, warmup_steps=4)"


def test_the_warm_up_is_a_tenth_of_the_steps_that_are_asked_for() -> None:
    cells = [trial for trial in SUITE.grid(Options(num_steps=10, repeats=1)) if trial.at == 256]
    assert cells
    assert all("warmup_steps=1)" in trial.jobs[0].optimizer for trial in cells)


def test_a_rate_that_nobody_searched_is_refused_with_the_remedy() -> None:
    with pytest.raises(SuiteError, match="run the suite largebatch-search"):
        rate_of(DIGITS, replace(DIGITS.rules[0], name="adagrad"))


def test_half_a_search_is_no_search() -> None:
    with pytest.raises(SuiteError, match="no record of batch-64"):
        list(choices([]))


def test_two_searches_in_one_folder_are_no_search() -> None:
    trial = SEARCH.grid(Options())[0]
    twice = [bare_record(trial, Status.OK, fabric_facts(trial, None), Environment())] * 2
    with pytest.raises(SuiteError, match="two records of batch-64"):
        list(choices(twice))


def test_a_folder_without_the_searchs_records_is_told_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (choose.main([str(tmp_path)]), choose.main([str(tmp_path / "absent")])) == (2, 2)
    told = capsys.readouterr().err
    assert "run the suite largebatch-search as a whole" in told
    assert "absent: no such folder of records; run a suite" in told


def row(optimizer: str, accuracies: list[float], *, dense: bool = False) -> TargetRow:
    ends = tuple(HeldOutEnd(repeat=repeat, accuracy=value, loss=1.0) for repeat, value in enumerate(accuracies))
    return TargetRow(
        name=optimizer, strategy="single-bucket", optimizer=optimizer, final=None, final_accuracy=None,
        final_loss=None, prices=(), course=None, clock="none", is_dense=dense, ends=ends,
    )  # fmt: skip


def verdict(recipe: list[float], lars: list[float], claim: str = ACCURACY) -> Outcome:
    rows = (
        row("sgd(lr=0.1)", [0.9] * 6, dense=True),
        row("lars(lr=1)", lars),
        row("sgd(lr=0.1)+linear-scaling(times=22.0)", recipe),
    )
    study = TargetStudy(
        suite="largebatch", workload=DIGITS.workload.label, where="", evidence="lockstep", num_workers=2,
        metric="accuracy", target=0.8, rule="", rows=rows, batch_size=DIGITS.batches[-1],
    )  # fmt: skip
    found = STUDY.claims(Evidence(suites=frozenset({"largebatch"}), targets=(study,)))
    return next(own.outcome for own in found if own.claim == claim)


def test_a_claim_is_met_only_where_the_whole_interval_lies_above_its_level() -> None:
    assert verdict([0.5] * 6, [0.7] * 6) is Outcome.MET
    assert verdict([0.5] * 6, [0.3] * 6) is Outcome.MISSED
    assert verdict([0.5] * 6, [0.4, 0.6] * 3) is Outcome.UNDECIDED
    assert verdict([0.5] * 3, [0.7] * 3) is Outcome.UNDECIDED


def test_a_seed_that_diverged_counts_as_guessing() -> None:
    assert verdict([CHANCE] * 6, [0.7] * 6) is Outcome.MET
    assert verdict([0.5] * 6, [CHANCE] * 6) is Outcome.MISSED


def test_choices_keep_every_rate_that_was_tried(tmp_path: Path) -> None:
    assert all(len(own.tried) == 5 and own.commits for own in chosen_rates())
    assert len(to_jsonable(chosen_rates()[0])) == 8
