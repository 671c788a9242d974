"""What sharing devices did, as terminal tables: metrics of a set of jobs, sweeps, optimisers, claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group

from analysis import terminal
from analysis.claims import ClaimRow, Outcome, judged_here, left_out
from analysis.sharing.axes import axis_of
from analysis.sharing.rows import OptimisedRow, OptimiserRow, PairRow, SharingRow, SweepRow
from analysis.terminal import Column, ColumnOf, Listing, columns_of
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


METRICS: tuple[ColumnOf[SharingRow], ...] = (
    ColumnOf("of\npredicted", 0, lambda row: NOT_KNOWN if row.bound_share is None else number(row.bound_share.median)),
    ColumnOf("p99 step\n/ alone", 1, lambda row: NOT_KNOWN if row.p99_ratio is None else f"{number(row.p99_ratio)}×"),
    ColumnOf("Jain\nindex", 2, lambda row: number(row.jain.median if row.jain else None)),
    ColumnOf("device\nbusy", 3, lambda row: _busy(row.turns.device_busy if row.turns else None)),
    ColumnOf("link\nbusy", 4, lambda row: _busy(row.turns.link_busy if row.turns else None)),
    ColumnOf("hand-over\np50", 5, lambda row: duration(_p50_s(row))),
    ColumnOf("hand-over\np99", 6, lambda row: duration(row.turns.handover_p99_s if row.turns else None)),
    ColumnOf("peak\nmemory", 7, lambda row: size(row.turns.peak_memory_bytes) if row.turns else NOT_KNOWN),
)
OPTIMISED: tuple[ColumnOf[OptimisedRow], ...] = (
    ColumnOf("exposed\nalone", 1, lambda row: percent(row.exposed_share)),
    ColumnOf("alone", 2, lambda row: factor(row.alone)),
    ColumnOf("with\ncrossover", 3, lambda row: factor(row.together)),
    ColumnOf("gain of\ncrossover", 0, lambda row: factor(row.gain)),
)


def _p50_s(row: SharingRow) -> float | None:
    return row.turns.handover_p50_s.median if row.turns and row.turns.handover_p50_s else None


def metrics_table(pair: PairRow) -> Listing:
    """Tails, fairness, use of device and link, hand-over and memory of each policy."""
    return Listing(
        title=f"Turns of {pair.title}",
        heading="sharing",
        labels=tuple(row.label for row in pair.rows),
        columns=columns_of(METRICS, pair.rows),
    )


def has_metrics(pair: PairRow) -> bool:
    """Whether its records tell of turns, which older ones do not."""
    return any(row.turns is not None for row in pair.rows)


def sweep_table(sweep: SweepRow) -> Listing:
    """Values of the axis down, policies across, the predicted gain last."""
    values, bounds = sweep.values, dict(sweep.bounds)
    columns = [
        Column(
            f"{series.way}\n[95 %]",
            tuple(factor(row.throughput) if (row := found.get(at)) else NOT_KNOWN for at in values),
            place,
        )
        for place, series in enumerate(sorted(sweep.series, key=lambda series: series.way != "crossover"))
        if (found := dict(series.points))
    ]
    bound = tuple(f"{number(bounds[at].median)}×" if at in bounds else NOT_KNOWN for at in values)
    return Listing(
        title=f"{sweep.title} ({sweep.evidence})",
        heading=sweep.axis,
        labels=tuple(f"{at:g}" for at in values),
        columns=(*columns, Column("bound", bound, 1)),
        notes=tuple(_sweep_notes(sweep)),
    )


def _sweep_notes(sweep: SweepRow) -> Iterator[str]:
    yield f"Gain over one job after the other, along: {axis_of(sweep.axis).label}."
    if sweep.level is not None and sweep.level.throughput is not None:
        yield f"{sweep.level.way}, for any of these: {factor(sweep.level.throughput)}."


def optimiser_table(optimised: OptimiserRow) -> Listing:
    """Strategies alone and with crossover, most exposed first."""
    note = f"Throughput over {optimised.plain} alone; exposed: the share of a step alone that communication adds."
    return Listing(
        title=f"{optimised.title} ({optimised.evidence})",
        heading="strategy",
        labels=tuple(row.name for row in optimised.rows),
        columns=columns_of(OPTIMISED, optimised.rows),
        notes=(note,),
    )


def claim_list(claims: Sequence[ClaimRow], width: int) -> Group:
    """Every claim that these cells can decide, with its outcome and the sentence that the records give."""
    parts = []
    for row in judged_here(claims):
        parts.append(terminal.paragraph(f"{row.outcome.value}: {row.claim}", width, style=_OUTCOMES[row.outcome]))
        parts.append(terminal.paragraph(row.sentence, width, indent=2))
    return terminal.titled("Claims", Group(*parts), width, [note] if (note := left_out(claims)) else ())
