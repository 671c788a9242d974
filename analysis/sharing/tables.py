"""What sharing devices did, as terminal tables: metrics of a set of jobs, sweeps, optimisers, claims."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Group

from analysis import terminal
from analysis.claims import ClaimRow, Outcome
from analysis.sharing.axes import axis_of
from analysis.sharing.rows import OptimiserRow, PairRow, SharingRow, SweepRow
from analysis.terminal import Column
from analysis.wording import NOT_KNOWN, duration, factor, number, percent, size

_OUTCOMES = {
    Outcome.MET: "green",
    Outcome.MISSED: "red",
    Outcome.UNDECIDED: "yellow",
    Outcome.OUT_OF_REACH: "dim",
    Outcome.NOT_MEASURED: "dim",
}


def _busy(share: float | None) -> str:
    return NOT_KNOWN if share is None else percent(share)


# Heading, rank (0 stays longest on a narrow terminal), text of one row.
METRICS: tuple[tuple[str, int, Callable[[SharingRow], str]], ...] = (
    ("of\npredicted", 0, lambda row: NOT_KNOWN if row.share is None else number(row.share.median)),
    ("p99 step\n/ alone", 1, lambda row: NOT_KNOWN if row.p99_ratio is None else f"{number(row.p99_ratio)}×"),
    ("Jain\nindex", 2, lambda row: number(row.jain.median if row.jain else None)),
    ("device\nbusy", 3, lambda row: _busy(row.turns.device_busy if row.turns else None)),
    ("link\nbusy", 4, lambda row: _busy(row.turns.link_busy if row.turns else None)),
    ("hand-over\np50", 5, lambda row: duration(_p50_s(row))),
    ("hand-over\np99", 6, lambda row: duration(row.turns.handover_p99_s if row.turns else None)),
    ("peak\nmemory", 7, lambda row: size(row.turns.peak_memory_bytes) if row.turns else NOT_KNOWN),
)


def _p50_s(row: SharingRow) -> float | None:
    return row.turns.handover_p50_s.median if row.turns and row.turns.handover_p50_s else None


def metrics_table(pair: PairRow, width: int) -> Group:
    """Tails, fairness, use of device and link, hand-over and memory of each policy."""
    columns = [Column(heading, tuple(map(cell, pair.rows)), rank) for heading, rank, cell in METRICS]
    filled = [column for column in columns if set(column.cells) != {NOT_KNOWN}]
    table = terminal.table("sharing", [row.label for row in pair.rows], filled, width)
    return terminal.titled(f"Turns of {pair.title}", table, width)


def has_metrics(pair: PairRow) -> bool:
    """Whether its records tell of turns, which older ones do not."""
    return any(row.turns is not None for row in pair.rows)


def sweep_table(sweep: SweepRow, width: int) -> Group:
    """Values of the axis down, policies across, the bound last."""
    values = sweep.values
    columns = [
        Column(
            f"{series.way}\n[95 %]",
            tuple(factor(row.throughput) if (row := found.get(at)) else NOT_KNOWN for at in values),
            place,
        )
        for place, series in enumerate(sorted(sweep.series, key=lambda series: series.way != "crossover"))
        if (found := dict(series.points))
    ]
    bounds = dict(sweep.bounds)
    bound = tuple(f"{number(bounds[at].median)}×" if at in bounds else NOT_KNOWN for at in values)
    table = terminal.table(sweep.axis, [f"{at:g}" for at in values], [*columns, Column("bound", bound, 1)], width)
    return terminal.titled(f"{sweep.title} ({sweep.evidence})", table, width, list(_sweep_notes(sweep)))


def _sweep_notes(sweep: SweepRow) -> Iterator[str]:
    yield f"Gain over one job after the other, along: {axis_of(sweep.axis).label}."
    if sweep.level is not None and sweep.level.throughput is not None:
        yield f"{sweep.level.way}, for any of these: {factor(sweep.level.throughput)}."


def optimiser_table(optimised: OptimiserRow, width: int) -> Group:
    """Strategies alone and with crossover, most exposed first."""
    rows = optimised.rows
    columns = [
        Column("exposed\nalone", tuple(percent(row.exposed_share) for row in rows), 1),
        Column("alone", tuple(factor(row.alone) for row in rows), 2),
        Column("with\ncrossover", tuple(factor(row.together) for row in rows), 3),
        Column("gain of\ncrossover", tuple(factor(row.gain) for row in rows), 0),
    ]
    table = terminal.table("strategy", [row.name for row in rows], columns, width)
    note = f"Throughput over {optimised.plain} alone; exposed: the share of a step alone that communication adds."
    return terminal.titled(f"{optimised.title} ({optimised.evidence})", table, width, [note])


def claim_list(claims: Sequence[ClaimRow], width: int) -> Group:
    """Every claim with its outcome and the sentence that the records give."""
    parts = []
    for row in claims:
        parts.append(terminal.paragraph(f"{row.outcome.value}: {row.claim}", width, style=_OUTCOMES[row.outcome]))
        parts.append(terminal.paragraph(row.sentence, width, indent=2))
    return terminal.titled("Claims", Group(*parts), width)
