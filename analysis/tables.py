"""The summary as terminal tables and as plain rows for `--json`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.compare import Comparison
from analysis.rows import CellRow, OutcomeRow, PairRow, SettingRow, SharingRow, Summary, Tone
from analysis.wording import NOT_KNOWN, duration, factor, number, percent, size
from results.codec import to_jsonable

_TONES = {Tone.PAYS: "green", Tone.NOTHING_PAYS: "yellow", Tone.OPEN: "dim"}


def render(summary: Summary, console: Console) -> None:
    """Print verdicts, settings, sharing and what did not run."""
    for setting in summary.settings:
        console.print(setting_table(setting))
    for pair in summary.pairs:
        console.print(pair_table(pair))
    if summary.outcomes:
        console.print(outcome_table(summary.outcomes))
    for verdict in summary.verdicts:
        console.print(Text(f"{verdict.title} ({verdict.evidence})", style="bold"))
        console.print(Text(f"  {verdict.headline}", style=_TONES[verdict.tone]))
        for detail in verdict.details:
            console.print(Text(f"  {detail}", style="dim"))


def _speedup(row: CellRow) -> str:
    if row.is_ideal:
        return NOT_KNOWN
    return "baseline" if row.is_baseline else factor(row.speedup)


_COLUMNS: tuple[tuple[str, Callable[[CellRow], str]], ...] = (
    ("n", lambda row: str(row.num_repeats)),
    ("step ms", lambda row: number(row.step_time_s.median * 1e3)),
    ("samples/s", lambda row: number(row.samples_per_s.median)),
    ("speed-up [95 %]", _speedup),
    ("exposed ms", lambda row: number(None if row.phases.exposed_s is None else row.phases.exposed_s * 1e3)),
    ("sent/step", lambda row: size(row.sent_bytes)),
    ("to target", lambda row: duration(row.time_to_target_s.median if row.time_to_target_s else None)),
    ("loss", lambda row: number(row.final_loss.median if row.final_loss else None)),
    ("accuracy", lambda row: number(row.final_accuracy.median if row.final_accuracy else None)),
)


def setting_table(setting: SettingRow) -> Table:
    """Cells of one setting, fastest first, the line without communication last. Columns nobody fills are left out."""
    target = f"; target loss {number(setting.target_loss)}" if setting.target_loss is not None else ""
    table = _table(f"{setting.title} ({setting.evidence})")
    table.caption = f"Medians over repeats, 95 % bootstrap interval; speed-up against {setting.baseline}{target}."
    table.add_column("system", overflow="fold")
    columns = [(heading, [cell(row) for row in setting.cells]) for heading, cell in _COLUMNS]
    filled = [(heading, texts) for heading, texts in columns if set(texts) != {NOT_KNOWN}]
    for heading, _ in filled:
        table.add_column(heading, justify="right", no_wrap=True)
    for place, row in enumerate(setting.cells):
        table.add_row(row.label, *(texts[place] for _, texts in filled), style="dim" if row.is_ideal else "")
    return table


def pair_table(pair: PairRow) -> Table:
    """Sharing policies over one set of jobs."""
    table = _table(f"{pair.title} ({pair.evidence})")
    table.caption = "Throughput: Σ solo step time / shared step time. Makespan: exclusive / here. Bound: Σt/T*."
    table.add_column("sharing", no_wrap=True)
    for heading in ("n", "throughput", "bound", "of bound", "makespan", "slowdown by job"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in pair.rows:
        table.add_row(*_sharing_cells(row), style="dim" if row.is_reference else "")
    return table


def _sharing_cells(row: SharingRow) -> tuple[str, ...]:
    slowdowns = [number(job.slowdown.median) if job.slowdown else NOT_KNOWN for job in row.jobs]
    return (
        row.label,
        str(row.num_repeats),
        factor(row.throughput),
        NOT_KNOWN if row.is_reference or row.bound is None else f"{number(row.bound.median)}×",
        NOT_KNOWN if row.bound_share is None else percent(row.bound_share.median),
        factor(row.makespan_ratio),
        " / ".join(slowdowns),
    )


def outcome_table(outcomes: tuple[OutcomeRow, ...]) -> Table:
    """What was skipped or failed, with the reason in full."""
    table = _table("Skipped and failed")
    table.add_column("cell")
    table.add_column("outcome", no_wrap=True)
    table.add_column("repeats", justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for row in outcomes:
        table.add_row(Text(row.cell), row.status.value, f"{row.num_repeats} of {row.num_tried}", Text(row.reason))
    return table


def comparison_table(comparisons: Sequence[Comparison]) -> Table:
    """Two sets of records, cell by cell; below 1 is faster, or fewer bytes."""
    table = _table("After over before")
    table.caption = "Ratio of median times with 95 % interval: step time, or makespan where jobs share."
    table.add_column("cell", overflow="fold")
    for heading in ("time [95 %]", "bytes", "change"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in comparisons:
        table.add_row(Text(row.cell), factor(row.time_ratio), number(row.bytes_ratio), row.change.value)
    return table


def comparisons_as_json(comparisons: Sequence[Comparison]) -> list[Any]:
    """The comparison as plain JSON values, as `rows_as_json`."""
    plain = to_jsonable(_known(tuple(comparisons)))
    assert isinstance(plain, list)
    return plain


def rows_as_json(summary: Summary) -> dict[str, Any]:
    """The summary as plain JSON values: an unknown bound is null, a run that never converged `"inf"`.

    Curves are left out; they stand in the records.
    """
    slim = dataclasses.replace(summary, settings=tuple(map(_without_curves, summary.settings)))
    plain = to_jsonable(_known(slim))
    assert isinstance(plain, dict)
    return plain


def _without_curves(setting: SettingRow) -> SettingRow:
    return dataclasses.replace(setting, cells=tuple(dataclasses.replace(row, curve=None) for row in setting.cells))


def _known(value: Any) -> Any:
    """`value` with NaN as None, dataclasses as dicts."""
    if isinstance(value, float) and math.isnan(value):
        return None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _known(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_known(item) for item in value]
    return value


def _table(title: str) -> Table:
    heading = Text(title, style="bold")
    return Table(title=heading, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
