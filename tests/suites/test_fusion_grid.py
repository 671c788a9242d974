"""The grids of the suites `fusion` and `ordering`, and the sizes in them."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import pytest

from analysis.naming import Method
from analysis.stats import median_interval
from analysis.steps.rows import Setting, StepRow
from baselines.strategy import parse_strategy
from fabric.api import FabricKind
from harness.checks.trial import check
from harness.facts import plugins_of
from harness.sizes import scaled
from harness.trial import Trial
from models.layer_profile import Profile, load_profile
from models.networks import find_network
from models.workload import Device
from results.facts import in_real_sizes, text_of
from results.record import Phases
from suites.api import ALPHA_S, FEWEST, Options, Suite
from suites.catalogue import all_studies, suite_of
from suites.expected import expected_each_s
from suites.fusion.grid import SUITE as FUSION
from suites.fusion.study import CLAIMS as FUSION_CLAIMS
from suites.ordering.grid import SUITE as ORDERING
from suites.ordering.study import CLAIMS as ORDERING_CLAIMS
from suites.ordering.study import FAST_GBIT
from suites.scaling import LINKS, NUM_WARMUP
from suites.step_rows import ORDERINGS, parts

SUITES = (FUSION, ORDERING)
LONGEST_STEP_S = 1.2


@pytest.fixture(scope="module", params=SUITES, ids=lambda suite: suite.name)
def suite(request: pytest.FixtureRequest) -> Suite:
    found = request.param
    assert isinstance(found, Suite)
    return found


def cells(suite: Suite) -> list[Trial]:
    return list({trial.cell: trial for trial in suite.grid(Options())}.values())


@cache
def profile_of(network: str) -> Profile:
    return load_profile(find_network(network).profile)


@cache
def passes_s(network: str) -> float:
    return profile_of(network).forward_s + profile_of(network).backward_s


@cache
def parameters_of(network: str) -> int:
    return profile_of(network).num_parameters


def step_s(trial: Trial) -> float:
    """Forward and then all bytes, or all computation if that is longer: the profile's times and the line's rate."""
    workload = trial.jobs[0].workload
    profile = profile_of(workload.network)
    compute_s = passes_s(workload.network) * workload.batch_size / profile.batch_size
    if trial.jobs[0].system == "local" or trial.fabric.rate_bps is None:
        return compute_s
    share = 2 * (trial.num_ranks - 1) / trial.num_ranks
    link_s = 32 * parameters_of(workload.network) / workload.size_scale * share / (0.95 * trial.fabric.rate_bps)
    return max(compute_s, profile.forward_s * workload.batch_size / profile.batch_size + link_s)


def test_every_cell_can_be_run_and_has_a_name_of_its_own(suite: Suite) -> None:
    trials = suite.grid(Options())
    assert len({trial.id for trial in trials}) == len(trials)
    for trial in cells(suite):
        check(trial)


def replayed(suite: Suite) -> list[Trial]:
    return [t for t in cells(suite) if t.jobs[0].system == "ours" and t.jobs[0].workload.device is Device.REPLAY]


def test_all_numbers_of_workers_and_links_and_networks_are_measured(suite: Suite) -> None:
    ours = replayed(suite)
    assert {trial.num_ranks for trial in ours} == {2, 4, 8, 16, 64}
    assert {trial.jobs[0].workload.network for trial in ours} == {"resnet50", "vgg16", "bert_base", "gpt2"}
    assert {trial.at for trial in ours} >= {10.0, 25.0, 100.0}


def test_no_measured_step_is_much_longer_than_a_second_and_six_repeats_fit_the_budget(suite: Suite) -> None:
    assert max(step_s(t) for t in cells(suite) if t.jobs[0].workload.device is Device.REPLAY) <= LONGEST_STEP_S
    assert sum(expected_each_s(suite.grid(Options()), foresees=True)) <= suite.budget_s


def test_the_slices_of_p3s_paper_are_measured_in_one_place_only() -> None:
    sliced = [t.cell.rpartition("/")[0] for s in SUITES for t in cells(s) if "slice_elements=40000)" in real(t)]
    assert sliced == ["replay-8-10/resnet50-replay"] * 2  # in P3's order, and first in, first out


def test_every_claim_about_measured_steps_finds_its_cells(suite: Suite) -> None:
    """All but those about predictions of clusters that are not here."""
    rows = [_row(trial) for trial in cells(suite) if trial.jobs[0].system != "local"]
    for claim in {"fusion": FUSION_CLAIMS, "ordering": ORDERING_CLAIMS}[suite.name]:
        if "scaling efficiency" not in claim.claim:
            found = list(claim.select(rows))
            assert any(one.value.n >= 1 for one in found), claim.claim


def test_every_ordering_has_a_fifo_to_be_compared_with_where_no_order_can_help() -> None:
    fast = [_row(trial) for trial in cells(ORDERING) if trial.at == FAST_GBIT and trial.jobs[0].system == "ours"]
    ordered = {row.name for row in fast if parts(row) & set(ORDERINGS)}
    (claim,) = (claim for claim in ORDERING_CLAIMS if claim.claim.startswith("Where no order can help"))
    judged = [one.cell for one in claim.select(fast)]
    assert len(ordered) == 3
    assert {next(name for name in ordered if cell.startswith(f"{name} over ")) for cell in judged} == ordered


def real(trial: Trial) -> str:
    """The cell's strategy or system in real sizes."""
    job = trial.jobs[0]
    return text_of(in_real_sizes(plugins_of(job), job.workload.size_scale))


@cache
def repeats_of(suite: str) -> Counter[str]:
    """By cell."""
    return Counter(trial.cell for trial in suite_of(suite).grid(Options()))


def _row(trial: Trial) -> StepRow:
    """What a report would make of the cell, had each of its repeats taken steps of a second."""
    job = trial.jobs[0]
    repeats = repeats_of(trial.suite)[trial.cell]
    method = Method(plugins_of(job)).in_real_sizes(job.workload.size_scale)
    return StepRow(
        place=Setting(
            suite=trial.suite,
            workload=job.workload.label,
            batch_size=job.workload.batch_size,
            num_workers=trial.num_ranks,
            gbit=trial.at,
            fabric=trial.fabric.kind.value,
        ),
        method=str(method),
        strategy=method,
        name=str(method),
        system=job.system.partition("(")[0],
        evidence="replay",
        phases=Phases(),
        step_time_s=median_interval([1.0] * repeats),
        by_repeat=tuple((repeat, 1.0) for repeat in range(repeats)),
        bound_s=0.5,
    )


def test_every_measured_cell_that_can_be_is_in_the_predicted_grid(suite: Suite) -> None:
    assert suite.predicted is not None
    one_kind = Options(fabric=FabricKind.EMULATED)  # sizes and rates differ by the kind of link
    foretold = suite.predicted(one_kind)
    known = {
        (trial.jobs[0].workload, trial.jobs[0].strategy, trial.fabric.rate_bps, world)
        for trial in foretold
        for world in (trial.num_ranks, *suite.predicted_worlds)
    }
    assert len({trial.id for trial in foretold}) == len(foretold)
    for trial in suite.grid(one_kind):
        job = trial.jobs[0]
        if job.system == "ours" and job.workload.device is Device.REPLAY:
            assert (job.workload, job.strategy, trial.fabric.rate_bps, trial.num_ranks) in known, trial.cell
    assert {trial.at for trial in foretold} == set(LINKS)
    assert max(suite.predicted_worlds) == 1024


def test_a_search_is_over_before_steps_are_measured(suite: Suite) -> None:
    for trial in cells(suite):
        job = trial.jobs[0]
        tuning = parse_strategy(job.strategy).tuning if job.system == "ours" else None
        searched = tuning.num_trials * tuning.num_steps if tuning else 0  # on top of the first ones, never counted
        assert trial.num_warmup >= NUM_WARMUP + searched
        assert not job.system.startswith("horovod(autotune") or trial.num_warmup > 50


def test_a_search_of_the_command_line_is_over_before_steps_are_measured_in_any_suite() -> None:
    searched = suite_of("quick").grid(Options(strategies=("tensor-fusion+bayesian(trials=4, steps=2)",)))
    plain = suite_of("quick").grid(Options(strategies=("tensor-fusion",)))
    assert {trial.num_warmup for trial in searched if trial.jobs[0].strategy.endswith("steps=2)")} == {16}
    assert {trial.num_warmup for trial in plain if trial.jobs[0].strategy == "tensor-fusion"} == {2}


def test_repeats_are_interleaved_and_six_everywhere(suite: Suite) -> None:
    trials = suite.grid(Options())
    assert [trial.repeat for trial in trials] == sorted(trial.repeat for trial in trials)
    counts = Counter(trial.cell for trial in trials)
    assert set(counts.values()) == {FEWEST}


def test_replay_among_more_than_four_runs_on_the_modelled_link_at_a_card_s_start_up_time(suite: Suite) -> None:
    for trial in cells(suite):
        modelled = trial.fabric.kind is FabricKind.PACED
        assert modelled or trial.num_ranks <= 4, trial.cell
        assert not modelled or trial.fabric.alpha_s == ALPHA_S, trial.cell
        if trial.jobs[0].system.startswith("horovod"):
            assert trial.fabric.kind is FabricKind.EMULATED, trial.cell


def test_a_place_has_one_kind_of_link(suite: Suite) -> None:
    """Studies compare by network, workers and rate; sockets and the model must not meet there."""
    kinds: dict[tuple[object, ...], set[FabricKind]] = {}
    for trial in cells(suite):
        workload = trial.jobs[0].workload
        kinds.setdefault((workload.network, workload.batch_size, trial.num_ranks, trial.at), set()).add(
            trial.fabric.kind
        )
    assert all(len(own) == 1 for own in kinds.values())


def test_smoke_is_one_short_repeat_on_two_hosts(suite: Suite) -> None:
    trials = suite.grid(Options(smoke=True))
    assert {(trial.num_ranks, trial.repeat, trial.num_steps) for trial in trials} == {(2, 0, 3)}
    assert len(trials) < 25


def test_smoke_takes_as_many_steps_as_are_asked_for(suite: Suite) -> None:
    assert {trial.num_steps for trial in suite.grid(Options(smoke=True, num_steps=30))} == {30}


def test_hosts_and_rates_of_the_command_line_leave_names_unique(suite: Suite) -> None:
    trials = suite.grid(Options(num_hosts=2, rate_bps=1e9, rate_given=True, repeats=1))
    assert {(trial.num_ranks, trial.fabric.rate_bps) for trial in trials} == {(2, 1e9)}
    assert len({trial.id for trial in trials}) == len(trials)
    assert all(trial.cell.startswith(("replay-2-", "real/")) for trial in trials)


def test_links_stand_for_the_rates_that_they_say() -> None:
    assert {gbit: link.rate_bps * link.size_scale / 1e9 for gbit, link in LINKS.items()} == {g: g for g in LINKS}


def test_sizes_shrink_with_the_tensors_and_nothing_else_does() -> None:
    text = "fixed-buckets(bucket_bytes=26214400, first_bucket_bytes=1048576)+half"
    assert scaled(text, 50) == "fixed-buckets(bucket_bytes=524288, first_bucket_bytes=20972)+half"
    assert scaled("torch-ddp(bucket_mb=25)", 50) == "torch-ddp(bucket_mb=0.5)"
    assert scaled("slices(slice_elements=40)+p3", 100) == "slices(slice_elements=1)+p3"
    assert scaled("horovod(fusion_threshold_bytes=0, cycle_s=0.005)", 50).startswith(
        "horovod(fusion_threshold_bytes=0,"
    )
    assert scaled(text, 1) == text
    searched = scaled("slices(slice_elements=100)+bayesian(trials=12)", 50)
    assert searched == "slices(slice_elements=2)+bayesian(size_scale=50, trials=12)"
    assert scaled("fixed-buckets+bayesian", 50) == "fixed-buckets+bayesian(size_scale=50)"


def test_a_method_has_one_name_over_all_size_scales(suite: Suite) -> None:
    assert suite.predicted is not None
    rates: dict[str, set[float | None]] = {}
    for trial in suite.predicted(Options(fabric=FabricKind.EMULATED)):  # by its sizes each link has its own scale
        rates.setdefault(real(trial), set()).add(trial.at)
    everywhere = [name for name, own in rates.items() if own == set(LINKS)]
    assert len(everywhere) >= 8  # under the cell's own sizes only those without any
    (study,) = (study for study in all_studies() if study.suite == suite.name)
    assert any(name.startswith(study.references[0]) for name in everywhere)
    assert all(float(size) < 1e9 for name in rates for size in re.findall(r"=(\d+)", name))
