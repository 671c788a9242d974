import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from synthetic_records import quick_suite
from synthetic_steps import Cell, measured

from analysis.rows import Summary
from analysis.tables import listings, render, rows_as_json, write_csv
from analysis.terminal import Column, ColumnOf, columns_of, fit, output_console, paragraph, table
from suites.reports import summary_of

NAMES = ("fixed-buckets", "unfused", "tensor-fusion", "+error-feedback", "torch-ddp", "horovod", "(fusion_threshold=0)")


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(quick_suite(2))


def shown(summary: Summary, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    render(summary, console)
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_no_label_vanishes_and_nothing_is_cut_at_any_width(summary: Summary, width: int) -> None:
    text = shown(summary, width)
    assert all(cell_len(line.rstrip()) <= width for line in text.splitlines())
    assert "…" not in text
    for name in NAMES:
        assert text.count(name) >= 4
    for expected in ("cmake <3.14+>", "silent for 60 s", "Undecided", "exclusive", "naive", "crossover"):
        assert expected in " ".join(text.split())


def test_a_wide_terminal_shows_every_column(summary: Summary) -> None:
    text = shown(summary, 120)
    for heading in (
        "step",
        "samples",
        "speed-up",
        "exposed",
        "sent",
        "target",
        "held-out",
        "racy",
        "of it",
        "slowdown",
    ):
        assert heading in text


def test_a_narrow_terminal_keeps_the_most_important_columns(summary: Summary) -> None:
    text = shown(summary, 80)
    assert "speed-up" in text
    assert "held-out  accu-" not in text


def test_too_few_repeats_are_noted_under_every_table(summary: Summary) -> None:
    text = shown(summary, 120)
    assert text.count("is the range of all repeats") == len(summary.settings) + len(summary.pairs)
    assert "--repeats 6" in shown(summary_of(quick_suite(1)), 120)


def test_text_in_square_brackets_is_no_markup() -> None:
    console = Console(width=40, record=True, file=io.StringIO())
    console.print(table("name", ["[red]x[/]"], [Column("h", ("[b]",))], 40))
    text = console.export_text()
    assert "[red]x[/]" in text
    assert "[b]" in text


words = st.text("abcdef+(/", min_size=1, max_size=40)


@given(
    st.lists(words, min_size=1, max_size=4),
    st.lists(st.tuples(words, st.integers(0, 3)), max_size=6),
    st.integers(1, 90),
)
def test_what_fits_is_in_order_and_never_wider_than_asked(
    labels: list[str], made: list[tuple[str, int]], width: int
) -> None:
    columns = [Column(f"h{place}", (text,) * len(labels), rank) for place, (text, rank) in enumerate(made)]
    kept, room = fit(labels, columns, width)
    assert [columns.index(column) for column in kept] == sorted(columns.index(column) for column in kept)
    assert room >= 1
    assert room + sum(2 + column.width for column in kept) <= width
    left_out = [column for column in columns if column not in kept]
    assert all(column.rank <= other.rank for column in kept for other in left_out)


def test_a_piped_table_is_120_columns_wide_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.__stdout__", io.StringIO())
    assert output_console().width == 120
    monkeypatch.setenv("COLUMNS", "90")
    assert output_console().width == 90


def test_a_no_break_space_never_ends_a_line() -> None:
    lines = str(paragraph("aaaa bbbb 95\N{NO-BREAK SPACE}%", 13, indent=2)).split("\n")
    assert lines == ["  aaaa bbbb", "  95\N{NO-BREAK SPACE}%"]


def test_terminal_and_csv_are_made_of_the_same_columns(summary: Summary, tmp_path: Path) -> None:
    every = list(listings(summary))
    paths = write_csv(summary, tmp_path)
    assert len(paths) == len(every) == len({path.name for path in paths})
    for path, listing in zip(paths, every, strict=True):
        with path.open(encoding="utf-8", newline="") as file:
            heading, *rows = csv.reader(file)
        assert [row[0] for row in rows] == list(listing.labels)
        assert heading[1:2] == ["as run"] or not listing.ran
        assert [row[1] for row in rows] == list(listing.ran) or not listing.ran
        first = 2 if listing.ran else 1
        assert len(heading) == first + len(listing.columns)
        for place, column in enumerate(listing.columns, start=first):
            assert [row[place] for row in rows] == ["" if text == "–" else text for text in column.cells]


def test_what_ran_stands_to_the_letter_in_json_and_csv(tmp_path: Path) -> None:
    written = "fixed-buckets(bucket_bytes=524288, first_bucket_bytes=20972)"
    cell = Cell("fusion", "resnet50", "fixed-buckets(bucket_bytes=26214400, first_bucket_bytes=1048576)", 4, 25.0)
    records = list(measured(cell))
    assert {record.jobs[0].strategy for record in records} == {written}
    found = summary_of(records)
    told = rows_as_json(found)
    assert told["settings"][0]["cells"][0]["strategy"] == told["studies"][0]["rows"][0]["ran"] == written
    for path in write_csv(found, tmp_path):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        assert all(row["as run"] == written for row in rows if "as run" in row)
    assert "as run" in (tmp_path / min(path.name for path in tmp_path.iterdir())).read_text()


def test_a_column_that_no_row_fills_is_left_out() -> None:
    specs: tuple[ColumnOf[int], ...] = (ColumnOf("known", 0, str), ColumnOf("unknown", 1, lambda _: "–"))
    assert [column.heading for column in columns_of(specs, (1, 2))] == ["known"]
