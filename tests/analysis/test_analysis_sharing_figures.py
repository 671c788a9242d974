from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from synthetic_records import quick_suite
from synthetic_sharing import crossover_suite

from analysis import theme
from analysis.claims import Outcome
from analysis.figures import drawings
from analysis.report import inline_svg, render_page
from analysis.rows import Summary
from analysis.stacks import sent_bytes
from analysis.tables import render, rows_as_json
from results.record import read_records
from suites.catalogue import suite_of
from suites.reports import summary_of

REFERENCE = Path(__file__).resolve().parents[2] / "results" / "reference"


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(crossover_suite())


@pytest.fixture(scope="module")
def drawn(summary: Summary) -> dict[str, str]:
    """What this suite alone draws; breakdowns and gains of a pair are in every report."""
    return {
        drawing.name: inline_svg(drawing) + drawing.caption
        for drawing in drawings(summary)
        if not drawing.name.startswith("sharing-")
    }


def test_every_question_has_its_figure(drawn: dict[str, str]) -> None:
    wanted = {"headline-1", "headline-2", "papers-case", "optimisers-speed-1", "optimisers-exposed-1"}
    wanted |= {"sweep-rho-1", "sweep-rho-2", "sweep-phase-1", "sweep-jobs-1", "sweep-hosts-1", "sweep-jitter-1"}
    assert wanted <= set(drawn)


def test_the_interval_is_drawn_over_the_predicted_gain(summary: Summary) -> None:
    """On a headline bar the mark often lies where the interval ends."""
    (axes,) = next(one for one in drawings(summary) if one.name == "headline-1").figure.axes
    last = [line.get_color() for line in axes.lines].index(theme.palette()[3])
    whisker = next(line for line in axes.lines[last + 1 :] if line.get_color() == theme.INK)
    assert whisker.get_zorder() >= axes.lines[last].get_zorder()
    assert axes.lines.index(whisker) > last


def test_the_legend_of_gains_lists_what_is_drawn() -> None:
    found = summary_of([one for one in quick_suite(3) if one.sharing in ("exclusive", "crossover")])
    (figure,) = (one.figure for one in drawings(found) if one.name == "sharing-gain-1")
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "throughput, crossover" in texts
    assert "throughput, other" not in texts


def test_the_legend_of_bytes_lists_what_is_drawn_in_the_colours_of_every_other_figure() -> None:
    found = summary_of([one for one in quick_suite(1) if one.cell.startswith("real/resnet20")]).settings[0]
    row = replace(found.competitors[0], wire_bytes={"control": 1.0, "framing": 1e5, "gradient": 1e6})
    colours = []
    for wire_bytes in (row.wire_bytes, row.wire_bytes | {"probe": 1e6}):
        figure = sent_bytes(replace(found, cells=(replace(row, wire_bytes=wire_bytes, interface_bytes=None),)))
        assert figure is not None
        (legend,) = figure.legends
        texts = [text.get_text() for text in legend.get_texts()]
        assert texts[-2:] == ["framing, by the engine", "gradient, by the engine"]  # neither control nor the interface
        colours.append([patch.get_facecolor() for patch in legend.get_patches()][-2:])
    assert colours[0] == colours[1]


def test_names_of_several_lines_leave_a_gap_to_their_neighbours() -> None:
    with theme.style():
        figure, axes = theme.bars(4)
        theme.names(axes, ["fixed-buckets(bucket=26.2 MB)+at-pre-hook", "mg-wfbp", "fixed-buckets(bucket=6.29 MB)"] * 2)
        figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    shortest = min(box.height for box in boxes)
    assert min(upper.y0 - lower.y1 for upper, lower in pairwise(boxes)) > 0.2 * shortest


def test_the_formula_stands_only_beside_jobs_without_overlap(drawn: dict[str, str]) -> None:
    with_formula = [name for name in ("sweep-rho-1", "sweep-rho-2") if "1+1/ρ" in drawn[name]]
    assert len(with_formula) == 1
    assert "single-bucket" in drawn[with_formula[0]]


def test_the_abstracts_line_is_called_a_claim(drawn: dict[str, str]) -> None:
    assert "no measurement" in drawn["papers-case"]
    assert "abstract" in drawn["papers-case"]


def test_the_page_holds_claims_first_and_every_number_of_the_sweeps(summary: Summary) -> None:
    page = render_page(summary, [])
    assert page.index('<section id="claims">') < page.index('<section id="sharing">')
    assert 'id="throughput"' not in page
    shown = [row for row in summary.claims if row.outcome is not Outcome.NOT_MEASURED]
    assert page.count('class="outcome ') == len(shown) < len(summary.claims)
    for heading in ("Jain index", "Device busy", "Hand-over p99", "Peak memory of a host", "Of the predicted gain"):
        assert heading in page
    assert f"<h1>{suite_of('crossover').question}</h1>" in page
    assert not re.search(r"\bNone\b|\bnan\b", re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))


@pytest.mark.parametrize("width", [70, 120])
def test_tables_of_sharing_fit_any_width(summary: Summary, width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    render(summary, console)
    lines = console.export_text().splitlines()
    assert all(cell_len(line.rstrip()) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    assert "missed: ImageNet networks" in text
    assert "Not shown: 5 claims that no cell here can decide." in text


def test_rows_are_plain_json(summary: Summary) -> None:
    data = json.loads(json.dumps(rows_as_json(summary), allow_nan=False))
    assert {row["outcome"] for row in data["claims"]} == {"met", "missed", "undecided", "not measured"}
    assert data["sweeps"][0]["series"][0]["points"]


@pytest.mark.parametrize("suite", ["quick", "crossover", "parity"])
def test_older_records_are_read_as_before(suite: str) -> None:
    archived = (REFERENCE.parent / "archive").glob(f"*/{suite}")
    folder = min(archived, default=REFERENCE / suite)
    records = list(read_records([folder]))
    summary = summary_of(records)
    assert summary.num_records == len(records)
    assert not summary.outcomes
    shared = {record.cell for record in records if len(record.jobs) > 1}
    rows = [row for pair in summary.pairs for row in pair.rows]
    rows += [row for sweep in summary.sweeps for pair in sweep.pairs for row in pair.rows]
    assert {row.cell for row in rows} == shared
