"""The summary as terminal tables and as plain rows for `--json`."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.text import Text

from analysis import terminal
from analysis.codes.tables import compression_tables
from analysis.collectives.tables import collective_tables
from analysis.compare import Comparison
from analysis.naming import Method
from analysis.rows import CellRow, OutcomeRow, PairRow, SettingRow, SharingRow, Summary, Tone, VerdictRow
from analysis.sharing.tables import claim_list, has_metrics, metrics_table, optimiser_table, sweep_table
from analysis.stats import FEWEST_FOR_LEVEL
from analysis.steps.tables import step_tables
from analysis.targets.tables import target_tables
from analysis.terminal import Column, ColumnOf, Listing, columns_of
from analysis.wording import NOT_KNOWN, duration, factor, number, percent, plural, size
from results.codec import to_jsonable

_TONES = {Tone.PAYS: "green", Tone.NOTHING_PAYS: "yellow", Tone.OPEN: "dim"}


def render(summary: Summary, console: Console) -> None:
    """Print every table, what did not run, and the verdicts and claims last, where the eye is."""
    for listing in listings(summary):
        console.print(listing.shown(console.width))
    if summary.outcomes:
        console.print(outcome_list(summary.outcomes, console.width))
    for verdict in summary.verdicts:
        console.print(verdict_text(verdict, console.width))
    if summary.claims:
        console.print(claim_list(summary.claims, console.width))


def listings(summary: Summary) -> Iterator[Listing]:
    """Every table of the summary, in the order of the terminal."""
    yield from map(setting_table, summary.settings)
    for pair in summary.pairs:
        yield pair_table(pair)
        if has_metrics(pair):
            yield metrics_table(pair)
    yield from map(sweep_table, summary.sweeps)
    yield from map(optimiser_table, summary.optimisers)
    yield from step_tables(summary.studies, summary.errors, summary.adapted)
    yield from compression_tables(summary.compression)
    yield from target_tables(summary.targets)
    yield from collective_tables(summary.collectives)


def write_csv(summary: Summary, folder: Path) -> list[Path]:
    """Every table as `folder/NN-title.csv`, with all of its columns. Raises: OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for place, listing in enumerate(listings(summary)):
        stem = re.sub(r"[^a-z0-9]+", "-", listing.title.lower()).strip("-")[:80]
        paths.append(folder / f"{place:02d}-{stem}.csv")
        with paths[-1].open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(listing.csv_rows())
    return paths


def verdict_text(verdict: VerdictRow, width: int) -> Group:
    """The headline under its title, and what qualifies it."""
    return Group(
        terminal.paragraph(f"{verdict.title} ({verdict.evidence})", width, style="bold"),
        terminal.paragraph(verdict.headline, width, style=_TONES[verdict.tone], indent=2),
        *(terminal.paragraph(detail, width, style="dim", indent=2) for detail in verdict.details),
    )


def _speedup(row: CellRow) -> str:
    if row.is_ideal:
        return NOT_KNOWN
    return "baseline" if row.is_baseline else factor(row.speedup)


_COLUMNS: tuple[ColumnOf[CellRow], ...] = (
    ColumnOf("n", 9, lambda row: str(row.num_repeats)),
    ColumnOf("step\nms", 1, lambda row: number(row.step_time_s.median * 1e3)),
    ColumnOf("samples\n/s", 2, lambda row: number(row.samples_per_s.median)),
    ColumnOf("speed-up\n[95 %]", 0, _speedup),
    ColumnOf(
        "exposed\nms", 6, lambda row: number(None if row.phases.exposed_s is None else row.phases.exposed_s * 1e3)
    ),
    ColumnOf("sent\nper step", 3, lambda row: size(row.sent_bytes)),
    ColumnOf("to\ntarget", 4, lambda row: duration(row.time_to_target_s.median if row.time_to_target_s else None)),
    ColumnOf("held-out\nloss", 7, lambda row: number(row.final_loss.median if row.final_loss else None)),
    ColumnOf("accu-\nracy", 5, lambda row: number(row.final_accuracy.median if row.final_accuracy else None)),
)


def setting_table(setting: SettingRow) -> Listing:
    """Cells of one setting, fastest first, the line without communication last."""
    same_n = len(setting.num_repeats) == 1
    columns = columns_of(_COLUMNS, setting.cells)
    return Listing(
        title=f"{setting.title} ({setting.evidence})",
        heading="system",
        labels=tuple(row.name for row in setting.cells),
        ran=tuple(row.label for row in setting.cells),
        columns=tuple(column for column in columns if not (same_n and column.heading == "n")),
        notes=tuple(_setting_notes(setting)),
        styles=tuple("dim" if row.is_ideal else "" for row in setting.cells),
    )


def _setting_notes(setting: SettingRow) -> Iterator[str]:
    against = f" Speed-up against {setting.baseline_name}." if setting.baseline else ""
    target = f" Target: training loss {number(setting.target_loss)}." if setting.target_loss is not None else ""
    if setting.is_exact and setting.num_repeats == (1,):
        yield f"By the virtual clock, which says the same every time.{against}{target}"
    else:
        yield f"Medians of {repeats_text(setting.num_repeats)}.{against}{target}"
        yield from _thin_note(setting.num_repeats)
    if setting.left_out:
        yield f"Parameters: {setting.left_out}."
    for row in setting.cells:
        if row.unused:
            yield (
                f"{row.name}: parameters without a gradient in some step, counted as zero, so that weight decay and "
                f"momentum act on them: {row.unused}."
            )


def repeats_text(counts: Sequence[int]) -> str:
    """`3 repeats`, or `2 to 3 repeats`."""
    return plural(counts[0], "repeat") if len(counts) == 1 else f"{counts[0]} to {plural(counts[-1], 'repeat')}"


def _thin_note(counts: Sequence[int]) -> Iterator[str]:
    if counts[0] == 1:
        yield f"One repeat gives no interval; a 95 % interval needs {FEWEST_FOR_LEVEL} (--repeats {FEWEST_FOR_LEVEL})."
    elif counts[0] < FEWEST_FOR_LEVEL:
        yield f"(low to high) is the range of all repeats: fewer than {FEWEST_FOR_LEVEL} make no 95 % interval."


def pair_table(pair: PairRow) -> Listing:
    """Sharing policies over one set of jobs."""
    jobs = [f"{job.name}\nslowdown" for job in pair.rows[0].jobs]
    headings = ("throughput\n[95 %]", "predicted\nΣt/T*", "of it", "of hard\nlimit", "makespan ratio\n[95 %]", *jobs)
    ranks = (0, 1, 2, 3, 4, *(5 for _ in jobs))
    texts = list(zip(*map(_sharing_cells, pair.rows), strict=True))
    return Listing(
        title=f"{pair.title} ({pair.evidence})",
        heading="sharing",
        labels=tuple(row.label for row in pair.rows),
        ran=tuple(" | ".join(job.strategy for job in row.jobs) for row in pair.rows),
        columns=tuple(Column(*column) for column in zip(headings, texts, ranks, strict=True)),
        notes=tuple(_pair_notes(pair)),
        styles=tuple("dim" if row.is_reference else "" for row in pair.rows),
    )


def _pair_notes(pair: PairRow) -> Iterator[str]:
    counts = sorted({row.num_repeats for row in pair.rows})
    yield f"Medians of {repeats_text(counts)}. Throughput: Σ solo step time / step time here, exclusive = 1."
    yield "T*: predicted from measured c, m, t. Hard limit: max(Σc, Σ bytes/rate, chain of a job); no turns pass it."
    yield "Makespan: exclusive over here. Slowdown: step time over that alone."
    yield from _thin_note(counts)


def _sharing_cells(row: SharingRow) -> tuple[str, ...]:
    return (
        "1" if row.is_reference else factor(row.throughput),
        NOT_KNOWN if row.is_reference or row.bound is None else f"{number(row.bound.median)}×",
        NOT_KNOWN if row.bound_share is None else percent(row.bound_share.median),
        NOT_KNOWN if row.limit_share is None else percent(row.limit_share.median),
        "1" if row.is_reference else factor(row.makespan_ratio),
        *(f"{number(job.slowdown.median)}×" if job.slowdown else NOT_KNOWN for job in row.jobs),
    )


def outcome_list(outcomes: Sequence[OutcomeRow], width: int) -> Group:
    """What was skipped, failed or invalid: the cell, how many of its trials, and below it the reason in full."""
    lines: list[Text] = []
    for row in outcomes:
        repeats = f"{row.num_repeats} of {plural(row.num_tried, 'trial')}"
        lines.append(Text.assemble((row.status.value, "yellow"), f" {row.cell} ({repeats})"))
        lines.append(terminal.paragraph(row.reason, width, indent=2))
    return terminal.titled("Skipped, failed and invalid", Group(*lines), width)


_COMPARED: tuple[ColumnOf[Comparison], ...] = (
    ColumnOf("time [95 %]", 1, lambda row: factor(row.time_ratio)),
    ColumnOf("bytes", 2, lambda row: number(row.bytes_ratio)),
    ColumnOf("change", 0, lambda row: row.change.value),
)


def comparison_table(comparisons: Sequence[Comparison], width: int) -> Group:
    """Two sets of records, cell by cell; below 1 is faster, or fewer bytes."""
    suites = {row.suite for row in comparisons}
    made = Listing(
        title="After over before",
        heading="cell",
        labels=tuple(row.cell if len(suites) == 1 else f"{row.suite}: {row.cell}" for row in comparisons),
        columns=columns_of(_COMPARED, comparisons),
        notes=("Ratio of median times with 95 % interval: step time, or makespan where jobs share.",),
    )
    return made.shown(width)


def comparisons_as_json(comparisons: Sequence[Comparison]) -> list[Any]:
    """The comparison as plain JSON values, as `rows_as_json`."""
    plain = to_jsonable(_known(tuple(comparisons)))
    assert isinstance(plain, list)
    return plain


def rows_as_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain JSON values: an unknown bound is null, a run that never converged `"inf"`.

    Curves and single steps are left out; they stand in the records.
    """
    slim = dataclasses.replace(
        summary,
        settings=tuple(map(_without_series, summary.settings)),
        sweeps=tuple(dataclasses.replace(sweep, pairs=()) for sweep in summary.sweeps),  # its curves have the rows
        papers=(),  # these stand among the sweeps
    )
    plain = to_jsonable(_known(slim))
    assert isinstance(plain, dict)
    return plain


def _without_series(setting: SettingRow) -> SettingRow:
    cells = (dataclasses.replace(row, training=None, held_out=None, steps_s=()) for row in setting.cells)
    return dataclasses.replace(setting, cells=tuple(cells))


def _known(value: Any) -> Any:
    """`value` with NaN as None, methods as text, other dataclasses as dicts."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, Method):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field for field in dataclasses.fields(value) if field.compare)  # the rest is for computing only
        return {field.name: _known(getattr(value, field.name)) for field in fields}
    if isinstance(value, tuple):
        return [_known(item) for item in value]
    return value
