"""What strategies chose while training, how often ranks agreed, and real sizes in names: rows, tables, page."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from described import described
from rich.console import Console
from synthetic_steps import Cell, alone, measured

from analysis.report import render_page
from analysis.rows import Summary
from analysis.tables import render, rows_as_json
from results.record import Adapted, JobResult, Record, read_record, write_record
from suites.reports import summary_of

PLANNED = "mg-wfbp"
SLICED = "slices(slice_elements=2000000)+p3+at-pre-hook"
FIFO = "slices(slice_elements=2000000)+at-pre-hook"
SEARCH = "+bayesian(size_scale=50, trials=2, steps=3)"


def bound(step: int, alpha_s: float) -> Adapted:
    values = {"alpha_s": alpha_s, "beta_s_per_byte": 4e-8, "backward_s": 0.06, "forward_s": 0.02}
    return Adapted(step=step, what="bound", values=values)


def searched(repeat: int) -> tuple[Adapted, ...]:
    """Two trials; the first repeat keeps the second settings, the others the first."""
    first = {"packing.slice_elements": 40_000.0, "ordering.credit_bytes": 320_000.0}
    second = {"packing.slice_elements": 80_000.0, "ordering.credit_bytes": 640_000.0}
    kept, kept_s = (second, 0.2) if repeat == 0 else (first, 0.3)
    return (
        Adapted(step=6, what="tried", values=first, step_s=0.3),
        Adapted(step=9, what="tried", values=second, step_s=0.2),
        Adapted(step=9, what="chosen", values=kept, step_s=kept_s),
    )


def reported(one: Record, strategy: str, adaptation: tuple[Adapted, ...], rounds: float) -> Record:
    job = replace(one.jobs[0], strategy=strategy, adaptation=adaptation, num_control_rounds=rounds)
    return described(replace(one, jobs=(job,)))


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """MG-WFBP bound again in one repeat of three, P3 searched, and FIFO which does neither."""
    planned = [
        reported(one, PLANNED, (bound(3, 1e-3), *((bound(23, 3e-3),) if one.repeat == 1 else ())), 0.0)
        for one in measured(Cell("fusion", "resnet50", PLANNED, 4, 25.0), repeats=3)
    ]
    tuned = [
        reported(one, one.jobs[0].strategy + SEARCH, searched(one.repeat), 12.5)
        for one in measured(Cell("ordering", "vgg16", SLICED, 4, 25.0), repeats=3)
    ]
    fifo = list(measured(Cell("ordering", "vgg16", FIFO, 4, 25.0), repeats=3))
    return [*planned, *tuned, *fifo, *alone(Cell("ordering", "vgg16", FIFO, 4, 25.0), repeats=3)]


@pytest.fixture(scope="module")
def summary(records: list[Record]) -> Summary:
    return summary_of(records)


def test_costs_are_the_last_that_a_strategy_was_bound_to(summary: Summary) -> None:
    planned, tuned = summary.adapted
    assert (planned.name, planned.num_repeats, planned.num_rebound, planned.num_tried) == ("mg-wfbp", 3, 1, 0)
    assert planned.bound_at == (3,)
    assert planned.alpha_s is not None
    assert (planned.alpha_s.median, planned.alpha_s.high) == (1e-3, 3e-3)
    assert "25 Gbit/s" in planned.where
    assert not tuned.bound_at
    assert tuned.alpha_s is None


def test_kept_settings_are_in_real_sizes_with_the_repeats_that_kept_them(summary: Summary) -> None:
    _, tuned = summary.adapted
    assert tuned.num_tried == 2
    assert tuned.kept == (("slice=4.00 M, credit=32.0 MB", 1), ("slice=2.00 M, credit=16.0 MB", 2))
    assert tuned.kept_texts[1].endswith("(2×)")
    assert tuned.written_s is not None
    assert tuned.kept_s is not None
    assert (tuned.written_s.median, tuned.kept_s.median, tuned.kept_s.low) == (0.3, 0.3, 0.2)


def test_a_strategy_that_does_not_adapt_has_no_row(summary: Summary) -> None:
    assert len(summary.adapted) == 2
    assert not summary_of(list(measured(Cell("ordering", "vgg16", FIFO, 4, 25.0)))).adapted


def test_per_setting_names_have_the_sizes_that_those_of_step_times_have(summary: Summary) -> None:
    (setting,) = (setting for setting in summary.settings if setting.key.workload == "vgg16-replay")
    rows = {row.method: row.num_control_rounds for study in summary.studies for row in study.measured}
    assert {row.label for row in setting.competitors} >= {"slices(slice_elements=40000)+at-pre-hook"}  # as it was run
    shown = {setting.left_out, *(row.name for row in setting.competitors)}
    assert any("slice_elements=2000000" in text for text in shown)
    assert not any("40000)" in text or "size_scale" in text for text in shown)
    assert rows[SLICED + "+bayesian(trials=2, steps=3)"] == 12.5
    assert rows[FIFO] is None
    assert {row.name: row.num_control_rounds for row in setting.competitors}["slices+p3+at-pre-hook+bayesian"] == 12.5


def test_sizes_that_agree_to_three_figures_keep_labels_that_tell_them_apart() -> None:
    own = [
        reported(one, f"slices(slice_elements={size})", (), 0.0)
        for size in (400_000, 400_001)
        for one in measured(Cell("ordering", "vgg16", "unfused", 4, 25.0), repeats=3)
    ]
    own = [
        replace(one, cell=f"{one.cell}-{one.jobs[0].strategy}", id=f"{one.id}-{one.jobs[0].strategy}") for one in own
    ]
    (setting,) = summary_of(own).settings
    assert {row.name for row in setting.competitors} == {row.label for row in setting.competitors}
    assert len({row.name for row in setting.competitors}) == 2


def test_tables_and_page_show_them(summary: Summary) -> None:
    console = Console(file=io.StringIO(), width=160)
    render(summary, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for said in ("Chosen while training", "credit=16.0 MB (2×)", "step 3", "control", "25.0 MB"):
        assert said in text
    page = render_page(summary, [])
    for said in ("What strategies chose while training", "slice=4.00 M, credit=32.0 MB (1×)", "Control rounds"):
        assert said in page
    assert json.loads(json.dumps(rows_as_json(summary)))["adapted"][1]["num_tried"] == 2


def test_a_page_without_any_has_no_section() -> None:
    page = render_page(summary_of(measured(Cell("ordering", "vgg16", FIFO, 4, 25.0))), [])
    assert "What strategies chose" not in page
    assert 'href="#adapting"' not in page


def test_rounds_survive_a_file_and_older_records_have_none(records: list[Record], tmp_path: Path) -> None:
    path = write_record(records[3], tmp_path)
    assert read_record(path).jobs[0].num_control_rounds == 12.5
    older = json.loads(path.read_text())
    del older["jobs"][0]["num_control_rounds"]
    path.write_text(json.dumps(older))
    read = read_record(path).jobs[0]
    assert read.num_control_rounds is None
    assert isinstance(read, JobResult)
