"""Step times by method, workers and link: rows, rates at which methods pay, errors, claims, figures, tables, page."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from synthetic_steps import FUSION, Cell, alone, measured, predicted, record, step_suites

from analysis import theme
from analysis.claims import Outcome
from analysis.report import render_page
from analysis.rows import Summary
from analysis.stats import median_interval
from analysis.steps.figures import step_drawings
from analysis.steps.rows import StepRow
from analysis.steps.times import NOISE, paying_ranges, pays, step_rows
from analysis.tables import render, rows_as_json
from results.codec import from_jsonable
from results.facts import PluginFacts, in_real_sizes, text_of
from results.record import ConsistencyFacts, Prediction, RankTimes, Record
from results.schema1 import facts_of
from suites.reports import summary_of

BUCKETS = list(FUSION)[1]


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(step_suites())


def rows(summary: Summary, suite: str = "fusion") -> list[StepRow]:
    return [row for study in summary.studies if study.suite == suite for row in study.rows]


def outcome(summary: Summary, start: str) -> Outcome:
    return next(row.outcome for row in summary.claims if row.claim.startswith(start))


def cell(method: str, workers: int = 4, gbit: float = 25.0, network: str = "resnet50", suite: str = "fusion") -> Cell:
    return Cell(suite, network, method, workers, gbit)


def test_trials_of_two_steps_have_bytes_and_no_step_time() -> None:
    def first_steps(one: Record, number: int) -> Record:
        return replace(one, jobs=(replace(one.jobs[0], num_steps=number),))

    for number, num_rows in ((2, 0), (3, 1)):
        records = [first_steps(one, number) for one in measured(cell(BUCKETS))]
        assert len(step_rows([records], ("fusion",))) == num_rows


def test_measured_and_predicted_meet_in_one_row_whatever_the_size_scale(summary: Summary) -> None:
    buckets = [row for row in rows(summary) if row.method.startswith("fixed-buckets") and row.step_time_s]
    assert {row.name for row in buckets} == {"fixed-buckets"}
    assert {row.method for row in buckets} == {
        "fixed-buckets(bucket_bytes=26200000, first_bucket_bytes=1050000)",
    }
    for row in buckets:
        assert row.place.gbit is not None
        truth = Cell(
            "fusion", row.place.workload.removesuffix("-replay"), BUCKETS, row.place.num_workers, row.place.gbit
        )
        assert row.predicted_s == pytest.approx(truth.step_s)
        assert row.error == pytest.approx(0.02, abs=0.006)
        assert row.efficiency is not None
        assert row.single_s is not None
        assert row.efficiency.low <= row.efficiency.median <= row.efficiency.high
        assert row.efficiency.median == pytest.approx(row.single_s / (0.98 * truth.step_s), rel=0.01)


def test_what_is_only_predicted_is_no_setting_and_has_no_measurement(summary: Summary) -> None:
    assert {setting.evidence for setting in summary.settings} == {"replay"}
    far = [row for row in rows(summary) if row.place.num_workers == 1024]
    assert len(far) == 2 * len(FUSION) * 5
    assert all(row.step_time_s is None and row.predicted_efficiency is not None for row in far)


def test_suites_with_cells_of_one_name_stay_apart(summary: Summary) -> None:
    plain = {
        suite: [row for row in rows(summary, suite) if row.method == "unfused"] for suite in ("fusion", "ordering")
    }
    assert all(row.num_repeats in (0, 10) for own in plain.values() for row in own)
    assert [row.predicted_s for row in plain["fusion"]] != [row.predicted_s for row in plain["ordering"]]


def test_sizes_are_what_they_stand_for() -> None:
    assert real("torch-ddp(bucket_mb=0.5)", 50) == "torch-ddp(bucket_mb=25)"
    assert real("a(x_bytes=20972)+b(cycle_s=0.005)", 50) == "a(x_bytes=1050000)+b(cycle_s=0.005)"
    assert real("a(x_bytes=209715)", 5) == real("a(x_bytes=10486)", 100)


def real(text: str, size_scale: int) -> str:
    plugins = from_jsonable(tuple[PluginFacts, ...], facts_of({"system": "ours", "strategy": text})["plugins"])
    return text_of(in_real_sizes(plugins, size_scale))


def test_one_place_with_a_crossing_between_two_rates_is_interpolated() -> None:
    even = 1 + NOISE
    assert paying_ranges([(1.0, 2.0), (100.0, 1.5)]) == ((None, None),)
    assert paying_ranges([(1.0, 0.9), (100.0, 0.8)]) == ()
    ((low, high),) = paying_ranges([(1.0, even * 2.0), (100.0, even / 2.0)])
    assert low is None
    assert high == pytest.approx(10.0)
    ((low, high),) = paying_ranges([(1.0, even / 2.0), (100.0, even * 2.0)])
    assert low == pytest.approx(10.0)
    assert high is None
    ((low, high),) = paying_ranges([(1.0, even / 2), (100.0, even * 2), (10000.0, even / 2)])
    assert low == pytest.approx(10.0)
    assert high == pytest.approx(1000.0)


def test_a_curve_is_of_one_kind_of_link_and_a_table_says_of_which(summary: Summary) -> None:
    """Rates of a paced link and of an emulated one had stood on one curve."""
    unfused, buckets = (
        next(row for row in rows(summary) if row.method.startswith(name) and row.place.num_workers == 4)
        for name in ("unfused", "fixed-buckets")
    )

    def at(gbit: float, fabric: str, gain: float) -> list[StepRow]:
        place = replace(unfused.place, gbit=gbit, fabric=fabric)
        return [
            replace(row, place=place, step_time_s=median_interval([step_s]))
            for row, step_s in ((unfused, 1.0), (buckets, 1.0 / gain))
        ]

    paced, emulated = [*at(1.0, "paced", 2.0), *at(100.0, "paced", 2.0)], at(10.0, "emulated", 0.5)
    (alone,) = pays(paced + emulated, unfused.method)
    assert (alone.ranges, alone.where) == (((None, None),), "paced")
    both = pays([*paced, *emulated, *at(1.0, "emulated", 0.5)], unfused.method)
    assert [(one.text, one.column) for one in both] == [
        ("always", ("4", "workers", "paced")),
        ("never", ("4", "workers", "emulated")),
    ]


@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=8))
def test_rates_at_which_a_method_pays_are_those_of_its_gains(gains: list[float]) -> None:
    points = [(2.0**place, gain) for place, gain in enumerate(gains)]
    ranges = paying_ranges(points)
    for gbit, gain in points:
        inside = any((low or 0.0) <= gbit <= (high or math.inf) for low, high in ranges)
        assert inside == (gain > 1 + NOISE) or math.isclose(gain, 1 + NOISE, rel_tol=1e-9)


def test_errors_over_all_cells_are_those_that_were_made(summary: Summary) -> None:
    every, *parts = summary.errors
    assert every.num_cells == sum(len(study.measured) for study in summary.studies) - 2  # DDP and Horovod
    assert every.median.median == pytest.approx(0.0204, abs=0.002)
    assert every.median.low < every.median.median < every.median.high
    assert every.bias > 0
    assert every.p95.high < 0.03
    assert every.tau is not None
    assert every.tau.median == 1.0
    assert every.num_pairs > 100
    assert {"4 workers", "8 workers", "resnet50-replay", "suite ordering"} <= {row.of for row in parts}


def test_a_wrong_order_lowers_tau_and_a_wrong_time_raises_the_error() -> None:
    methods = list(FUSION)[:3]
    places = [(workers, gbit) for workers in (4, 8) for gbit in (5.0, 25.0)]
    honest = [one for method in methods for place in places for one in measured(cell(method, *place))]
    swapped = [one for one in honest if one.jobs[0].strategy == "unfused"]
    others = [one for one in honest if one not in swapped]
    lying = [_told(one, 0.5) for one in swapped]
    (error, *_) = summary_of([*others, *lying]).errors
    assert error.num_pairs == 12
    assert error.tau is not None
    assert error.tau.median == pytest.approx((1 - 2) / 3)
    assert error.worst == pytest.approx(0.5, abs=0.02)
    assert outcome(summary_of([*others, *lying]), "Predicted order of methods, emulated") is Outcome.MISSED
    assert outcome(summary_of([*others, *lying]), "Predicted step times, emulated") is Outcome.MISSED


@pytest.mark.parametrize(("longer", "num_pairs"), [(1.005, 0), (1.02, 1)])
def test_the_order_of_what_differs_by_less_than_noise_is_not_asked_for(longer: float, num_pairs: int) -> None:
    """However sure the difference is."""
    one, other = (measured(cell(method)) for method in ("mg-wfbp", "unfused"))
    (error, *_) = summary_of([*(_timed(own, 0.1) for own in one), *(_timed(own, 0.1 * longer) for own in other)]).errors
    assert error.num_pairs == num_pairs


def _timed(one: Record, step_s: float) -> Record:
    ranks = tuple(replace(rank, steps_s=(step_s,) * len(rank.steps_s)) for rank in one.jobs[0].ranks)
    return replace(one, jobs=(replace(one.jobs[0], ranks=ranks),))


def _told(one: Record, factor: float) -> Record:
    assert one.prediction is not None
    assert one.prediction.step_time_s is not None
    return replace(one, prediction=replace(one.prediction, step_time_s=factor * one.prediction.step_time_s))


def test_crafted_records_meet_and_miss_the_claims_that_they_should(summary: Summary) -> None:
    assert outcome(summary, "Predicted step times, emulated") is Outcome.MET
    assert outcome(summary, "Predicted order of methods, emulated") is Outcome.MET
    assert outcome(summary, "MG-WFBP beats WFBP") is Outcome.MET
    assert outcome(summary, "ResNet-50 at 10 Gbit/s among 8 workers: the best of ours beats torch DDP") is Outcome.MET
    assert outcome(summary, "Horovod's paper: 90") is Outcome.NOT_MEASURED  # no ResNet-101
    assert outcome(summary, "Horovod's paper: 68") is Outcome.MISSED
    assert outcome(summary, "Where no order can help") is Outcome.MET


def test_the_other_way_round_they_miss_and_meet_them() -> None:
    slow = [one for method in FUSION for one in measured(cell(method), off=0.5 if method == "mg-wfbp" else 0.0)]
    assert outcome(summary_of(slow), "MG-WFBP beats WFBP") is Outcome.MISSED
    assert outcome(summary_of(slow), "MG-WFBP at least ties") is Outcome.MISSED
    plain = "slices(slice_elements=2000000)+at-pre-hook"
    dear = plain.replace("+at", "+p3+at")
    null = [one for off, name in ((0.0, plain), (0.2, dear)) for one in measured(_ordered(name, 100.0), off=off)]
    assert outcome(summary_of(null), "Where no order can help") is Outcome.MISSED


def _ordered(method: str, gbit: float) -> Cell:
    return cell(method, gbit=gbit, suite="ordering")


def test_the_share_of_the_bound_is_that_of_the_way_from_plain_to_bound() -> None:
    methods = ("unfused", "slices(slice_elements=2000000)+p3+at-pre-hook")
    cells = [cell(method, network="vgg16", suite="ordering") for method in methods]
    found = summary_of([one for own in cells for one in measured(own)] + list(alone(cells[0])))
    row = next(row for row in found.claims if row.claim.startswith("Where order can help"))
    link_s = 8 * 553.4e6 * 1.5 / (0.957 * 25e9)
    share = (cells[0].step_s - cells[1].step_s) / (cells[0].step_s - max(0.167, link_s))
    assert row.outcome is (Outcome.MET if share >= 0.9 else Outcome.MISSED)
    assert f"{share:.2f}"[:3] in row.sentence


def test_too_few_repeats_decide_nothing() -> None:
    thin = summary_of([one for method in FUSION for one in measured(cell(method), repeats=5)])
    assert {row.outcome for row in thin.claims} == {Outcome.UNDECIDED, Outcome.NOT_MEASURED}


def test_other_suites_have_no_step_times() -> None:
    other = summary_of([replace(one, suite="quick") for one in measured(cell("unfused"))])
    assert not other.studies
    assert not other.errors
    assert not other.claims


@pytest.mark.parametrize(("told_s", "says"), [(0.5, Outcome.MET), (0.6, Outcome.MISSED)])
def test_workers_that_may_be_steps_apart_are_timed_by_the_slowest_of_them(told_s: float, says: Outcome) -> None:
    steps = ((0.4, 0.6, 0.5), (0.6, 0.3, 0.4), (0.4, 0.4, 0.4))  # of 0.5 s in the mean; the longest of each of 0.57 s
    ranks = tuple(RankTimes(rank=rank, warmup_s=(), steps_s=own) for rank, own in enumerate(steps))
    facts = ConsistencyFacts(ahead={}, missed={}, waited_s=(0.0,) * 3, clocks=(3,) * 3)
    records = [
        replace(
            one, suite="consistency-hosts", cell=f"{name}/{one.jobs[0].workload}/asp",
            trial={"cluster": {"num_servers": 1}},
            jobs=(replace(one.jobs[0], ranks=ranks, num_servers=1, consistency=facts),),
            prediction=Prediction(source="virtual clock", step_time_s=told_s),
        )
        for name in ("equal", "straggler") for one in measured(cell(BUCKETS), repeats=8)
    ]  # fmt: skip
    summary = summary_of(records)
    assert [setting.title.rpartition(", ")[2] for setting in summary.settings] == ["equal", "straggler"]
    pace = 32 * (1 / 0.5 + 1 / 0.4333333 + 1 / 0.4)  # each worker's own
    assert all(row.samples_per_s.median == pytest.approx(pace) for own in summary.settings for row in own.cells)
    (claim,) = summary.claims
    assert claim.outcome is says
    assert {round(one.value.median, 6) for one in claim.cells} == {round(0.5 / told_s, 6)}
    assert {one.cell.rpartition(", ")[2] for one in claim.cells} == {"equal)", "straggler)"}
    assert all("3 workers" in one.cell for one in claim.cells)  # and a server


def test_a_lone_prediction_needs_no_measurement() -> None:
    found = summary_of([predicted(cell(method, workers, 10.0)) for method in FUSION for workers in (2, 4, 8, 16)])
    assert not found.settings
    assert {row.single_s for row in rows(found)} == {0.087}
    with theme.style():
        assert [drawing.name.partition("-")[0] for drawing in step_drawings(found)] == ["workers"]


def test_without_one_worker_alone_a_figure_has_no_row_for_efficiency_and_names_its_axis() -> None:
    times_s, system = {10.0: 0.1, 25.0: 0.08}, "torch-ddp(bucket_mb=0.5)"
    systems = [record(cell(BUCKETS, 4, gbit), 0, step_s, system=system) for gbit, step_s in times_s.items()]
    with theme.style():
        (rate,) = [one for one in step_drawings(summary_of(systems)) if one.name.startswith("rate")]
    (axes,) = rate.figure.axes
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_visible()) == ("ms per step", "Gbit/s", True)


def test_systems_are_measured_without_a_prediction() -> None:
    ddp = record(cell(BUCKETS), 0, 0.1, system="torch-ddp(bucket_mb=0.5)")
    (row,) = rows(summary_of([ddp]))
    assert (row.method, row.error, row.num_repeats) == ("torch-ddp(bucket_mb=25)", None, 1)


def test_every_figure_is_drawn_within_its_frame_and_names_its_records() -> None:
    """Of the suite with the most methods and the longest names."""
    own = (one for one in step_suites() if one.suite == "ordering" and "resnet50" in one.cell)
    found = summary_of([one for one in own if one.fabric.num_hosts + one.fabric.num_virtual < 99])
    with theme.style():
        drawn = {drawing.name: drawing for drawing in step_drawings(found)}
        for drawing in drawn.values():
            drawing.figure.draw_without_rendering()  # which lays out all that is drawn
            width, height = drawing.figure.canvas.get_width_height()
            for axes in drawing.figure.axes:
                box = axes.get_tightbbox()
                assert box is not None
                assert min(box.x0, box.y0, width - box.x1, height - box.y1) >= -2, drawing.name
    assert len(drawn) == 6
    assert {name.partition("-")[0] for name in drawn} == {"rate", "workers", "pays", "predicted"}
    assert all(drawing.record_ids for drawing in drawn.values())
    rates = [drawn[f"rate-ordering-resnet50-replay-32-{how}"].figure for how in ("all-reduce", "parameter-server")]
    assert [axes.get_title() for axes in rates[0].axes[:3]] == ["2 workers", "4 workers", "8 workers"]
    every = (line for rate in rates for axes in rate.axes for line in axes.get_lines())
    points = [line for line in every if line.get_marker() not in ("None", "", "_", "|")]
    shown = {round(float(y), 3) for line in points for y in np.atleast_1d(np.asarray(line.get_ydata(), dtype=float))}
    for row in rows(found, "ordering"):
        if row.step_time_s is not None and row.system == "ours":
            assert round(1e3 * row.step_time_s.median, 3) in shown


def test_tables_and_page_show_the_same_numbers(summary: Summary) -> None:
    console = Console(width=160, record=True, file=io.StringIO())
    render(summary, console)
    text, page = console.export_text(), render_page(summary, [])
    row = next(row for row in rows(summary) if row.step_time_s is not None)
    assert row.step_time_s is not None
    shown = f"{1e3 * row.step_time_s.median:.4g}"[:3]
    assert shown in text
    assert shown in page
    assert "Predicted against measured" in text
    assert '<section id="steps">' in page
    assert "scaling\nefficiency" not in page
    assert "Does sharing in turns" not in page
    plain = rows_as_json(summary)
    assert len(plain["studies"]) == 4
    assert plain["errors"][0]["num_cells"] == summary.errors[0].num_cells
