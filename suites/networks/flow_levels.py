"""Claims on flows without jobs: a figure of some cells, or of cells beside others, against a level."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge, judge_beside
from analysis.flows import rows as measured
from analysis.flows.rows import Figure, FlowRow

FIGURES: dict[Formula, Figure] = {
    Formula.COMPLETION: measured.completion_s,
    Formula.SLOWDOWN: measured.mean_slowdown,
    Formula.GROUPS: measured.group_s,
    Formula.USED: measured.used_s,
    Formula.GOODPUT: measured.goodput_bps,
    Formula.LEAST_SHARE: measured.least_share,
    Formula.QUEUE: measured.mean_queue_bytes,
    Formula.QUEUE_OVER_MARK: measured.queue_over_mark,
    Formula.HIGHEST_QUEUE: measured.highest_over_limit,
    Formula.ROUND_TRIP: measured.round_trip_s,
    Formula.CIRCLE: measured.waits_in_circle,
}
Rows = dict[tuple[str, str], FlowRow]  # by group and label


def alone(
    rows: Rows,
    claim: str,
    quantity: str,
    formula: Formula,
    groups: Sequence[str],
    labels: Sequence[str],
    *,
    low: float | None = None,
    high: float | None = None,
) -> ClaimRow:
    """A figure of each of these cells."""
    level = Level(claim=claim, quantity=quantity, formula=formula, low=low, high=high)
    own = [rows[group, label] for group in groups for label in labels if (group, label) in rows]
    return judge(level, [CellValue(row.cell, row.value(_figure(row, formula)), (row.ids,)) for row in own])


def _figure(row: FlowRow, formula: Formula) -> Figure:
    if formula is Formula.LINE_SHARE:
        return lambda run: measured.goodput_bps(run) / row.line_bps
    return FIGURES[formula]


def beside(
    rows: Rows,
    claim: str,
    quantity: str,
    formula: Formula,
    cells: Sequence[tuple[str, str, str]],
    *,
    low: float | None = None,
    high: float | None = None,
    some: bool = False,
) -> ClaimRow:
    """A figure of the first label over that of the second, by group."""
    level = Level(claim=claim, quantity=quantity, formula=formula, low=low, high=high, some=some, unit="×")
    return judge_beside(level, rows, cells, lambda own, base: own.over(base, FIGURES[formula]))
