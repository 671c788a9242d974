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
from baselines.strategy import parse_strategy
from harness.checks.trial import check
from harness.outcome import bare_record, fabric_facts
from models.workload import open_workload
from results.codec import to_jsonable
from results.record import Environment, Status
from suites.api import Options
from suites.catalogue import SuiteError
from suites.largebatch.cells import BASE_BATCH, DIGITS, ONE_HOUR, TASKS, one_hour
from suites.largebatch.grid import RECIPE, REPEATS, SCALED, SUITE
from suites.largebatch.rates import chosen_rates, rate_of
from suites.largebatch.study import STUDY
from suites.largebatch_search import choose
from suites.largebatch_search.choose import choices
from suites.largebatch_search.grid import SUITE as SEARCH

ACCURACY = "LARS ends above SGD scaled and warmed up at the largest batch"
DECAYED = "LARS (You et al., 2017) with its decay ends above the one-hour recipe at the largest batch"


def test_every_batch_sees_as_many_samples_with_the_same_seeds() -> None:
    trials = SUITE.grid(Options())
    assert len({trial.seed for trial in trials}) == REPEATS
    for trial in trials[: len(trials) // REPEATS]:
        check(trial)
        (job,) = trial.jobs
        assert trial.at == BASE_BATCH * job.accumulate
        task = next(task for task in (*TASKS, ONE_HOUR) if task.workload == job.workload)
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


def optimizer_of(batch: int, workload: str, name: str) -> str:
    cell = f"batch-{batch}/{workload}/{name}"
    return next(trial.jobs[0].optimizer for trial in SUITE.grid(Options(repeats=1)) if trial.cell == cell)


def test_linear_scaling_alone_scales_the_rate_of_the_base_batch_and_warms_up() -> None:
    text = optimizer_of(256, DIGITS.workload.label, SCALED)
    assert text == f"sgd(lr={rate_of(DIGITS, DIGITS.rules[0]):.6g})+linear-scaling(times=4.0, warmup_steps=4)"


def test_the_one_hour_recipe_is_the_papers() -> None:
    """Section 5.1, with an epoch per step: warm-up from the base rate for 5 epochs, a tenth at 30, 60 and 80 of 90,
    weight decay 0.0001 but not of BatchNorm's coefficients, Nesterov's momentum 0.9; and every block's last γ is 0."""
    optimizer = parse_strategy(one_hour(0.1, 32.0, 90)).optimizer
    model = open_workload(ONE_HOUR.workload).build_model(1)
    built = optimizer.build(model.named_parameters())
    decays = {name: group["weight_decay"] for group in built.param_groups for name in group["param_names"]}
    assert {name for name, decay in decays.items() if decay == 0.0} == {name for name in decays if "bn" in name}
    assert set(decays.values()) == {0.0, 0.0001}
    assert all(group["nesterov"] and group["momentum"] == 0.9 for group in built.param_groups)
    rates = []
    for _ in range(90):
        built.step()
        rates.append(built.param_groups[0]["lr"])
    assert rates[:6] == pytest.approx([0.1 * (1 + 31 * epoch / 5) for epoch in range(5)] + [3.2])
    assert [rates[epoch] for epoch in (29, 30, 59, 60, 79, 80, 89)] == pytest.approx(
        [3.2, 0.32, 0.32, 0.032, 0.032, 0.0032, 0.0032]
    )
    gammas = {name: bool(value.any()) for name, value in model.named_parameters() if name.endswith("bn2.weight")}
    assert len(gammas) == 9
    assert not any(gammas.values())
    base, large = (optimizer_of(batch, ONE_HOUR.workload.label, RECIPE) for batch in DIGITS.batches[:2])
    assert "linear-scaling" not in base
    assert large.endswith("+linear-scaling(times=4.0, warmup_steps=2)+step-decay(at=(15, 29, 39))")


@pytest.mark.parametrize(("rule", "power"), [("lars", 2.0), ("lamb", 1.0)])
def test_decayed_rules_have_the_searched_rate_and_the_papers_power(rule: str, power: float) -> None:
    plain, decayed = (optimizer_of(256, DIGITS.workload.label, name) for name in (rule, f"{rule}, decayed"))
    assert decayed == f"{plain}+polynomial-decay(num_steps=44, power={power}, after=4)"


def test_the_warm_up_is_a_tenth_of_the_steps_that_are_asked_for() -> None:
    cells = [trial for trial in SUITE.grid(Options(num_steps=10, repeats=1)) if trial.at == 256]
    assert cells
    assert all("warmup_steps=1)" in trial.jobs[0].optimizer for trial in cells)
    short = SUITE.grid(Options(num_steps=1, repeats=1))  # which check() reads as two
    assert all(trial.jobs[0].resolve() for trial in short)


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


def study_of(workload: str, *rows: TargetRow) -> TargetStudy:
    return TargetStudy(
        suite="largebatch", workload=workload, where="", evidence="lockstep", num_workers=2,
        metric="accuracy", target=0.8, rule="", rows=rows, batch_size=DIGITS.batches[-1],
    )  # fmt: skip


def verdict(recipe: list[float], lars: list[float], claim: str = ACCURACY) -> Outcome:
    """Of `lars` over SGD scaled alone, and of its decayed form over the recipe."""
    on_digits = study_of(
        DIGITS.workload.label,
        row("sgd(lr=0.1)", [0.9] * 6, dense=True),
        row("lars(lr=1)+linear-scaling(times=22.0)", [0.5] * 6 if claim == DECAYED else lars),
        row("lars(lr=1)+linear-scaling(times=22.0)+polynomial-decay(num_steps=8, power=2.0, after=1)", lars),
        row("sgd(lr=0.1)+linear-scaling(times=22.0)", [0.5] * 6 if claim == DECAYED else recipe),
    )
    own = study_of(ONE_HOUR.workload.label, row("sgd(lr=0.1)+step-decay(at=(3, 5, 7))", recipe, dense=True))
    found = STUDY.claims(Evidence(suites=frozenset({"largebatch"}), targets=(on_digits, own)))
    return next(own.outcome for own in found if own.claim == claim)


@pytest.mark.parametrize("claim", [ACCURACY, DECAYED])
def test_a_claim_is_met_only_where_the_whole_interval_lies_above_its_level(claim: str) -> None:
    assert verdict([0.5] * 6, [0.7] * 6, claim) is Outcome.MET
    assert verdict([0.5] * 6, [0.3] * 6, claim) is Outcome.MISSED
    assert verdict([0.5] * 6, [0.4, 0.6] * 3, claim) is Outcome.UNDECIDED
    assert verdict([0.5] * 3, [0.7] * 3, claim) is Outcome.UNDECIDED


def test_a_seed_that_diverged_counts_as_guessing() -> None:
    assert verdict([CHANCE] * 6, [0.7] * 6) is Outcome.MET
    assert verdict([0.5] * 6, [CHANCE] * 6) is Outcome.MISSED


def test_choices_keep_every_rate_that_was_tried(tmp_path: Path) -> None:
    assert all(len(own.tried) == 5 and own.commits for own in chosen_rates())
    assert len(to_jsonable(chosen_rates()[0])) == 8
