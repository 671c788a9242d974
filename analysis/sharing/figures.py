"""Which figures of sharing a summary holds: headline, sweeps, the paper's case, optimisers, gains of the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING

from analysis.rows import Drawing, Summary
from analysis.sharing.axes import ALPHA, RHO, axis_of
from analysis.sharing.rows import OptimiserRow, PairRow, PaperCase, SweepRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {RHO: "rho", ALPHA: "alpha"}  # of files
_GAINS = (
    "Bars: aggregate normalised throughput Σ solo step time / shared step time, with 95 % interval. "
    "Diamonds: makespan of exclusive over makespan here. "
    "Upright orange mark: the gain Σt/T* predicted from measured c, m, t."
)
_HEADLINE = (
    "Bars: aggregate normalised throughput Σ solo step time / shared step time with 95 % interval; running one job "
    "after the other is 1. Naive co-location depends on when the jobs start: its bar is the median over start offsets, "
    "the thick line spans them all. Upright orange mark: the gain Σt/T* predicted from each job measured alone."
)
_SWEEP = (
    "Aggregate normalised throughput over running one job after the other, medians with 95 % intervals. Dotted orange: "
    "the gain Σt/T* predicted from each job measured alone. Below: measured over predicted gain, which counts the "
    "hand-over and the measured interference where they were recorded."
)
_FORMULA = " Thin line: the theory for jobs without overlap inside a step, {name}."
_SPEED = "Aggregate normalised throughput of each strategy alone and with crossover over {plain} alone, 95 % intervals."
_EXPOSED = (
    "What crossover adds on top of each strategy against the communication that the strategy alone leaves exposed: the "
    "less is exposed, the less is left to gain. Orange marks: each one's predicted gain Σt/T*."
)


def sharing_drawings(summary: Summary) -> Iterator[Drawing]:
    """Every figure of sharing but the breakdowns, headline first."""
    from analysis import stacks
    from analysis.sharing import plots as sharing_plots

    headline = [pair for pair in summary.pairs if sharing_plots.is_headline(pair)]
    yield from _by_fabric("headline", headline, sharing_plots.headline, _HEADLINE)
    for case in summary.papers:
        yield from _papers_drawing(case)
    papers = [sweep for case in summary.papers for sweep in case.sweeps]
    yield from _sweep_drawings([sweep for sweep in summary.sweeps if sweep not in papers])
    for row, number in zip(summary.optimisers, count(1), strict=False):
        yield from _optimiser_drawings(row, number)
    others = [pair for pair in summary.pairs if pair not in headline]
    yield from _by_fabric("sharing-gain", others, stacks.sharing, _GAINS)


def _by_fabric(
    name: str, pairs: Sequence[PairRow], draw: Callable[[Sequence[PairRow]], Figure | None], caption: str
) -> Iterator[Drawing]:
    """One figure for each network that the pairs ran on."""
    for place, key in enumerate(dict.fromkeys(pair.key for pair in pairs)):
        here = [pair for pair in pairs if pair.key == key]
        figure = draw(here)
        if figure is not None:
            yield _drawing(f"{name}-{place + 1}", caption, figure, _ids(here))


def _sweep_drawings(sweeps: Sequence[SweepRow]) -> Iterator[Drawing]:
    from analysis.sharing import sweep_plots

    ceilings = sweep_plots.axis_ceilings(sweeps)
    numbers = Counter[str]()
    for row in sweeps:
        figure = sweep_plots.sweep(row, ceilings.get(row.axis))
        if figure is not None:
            stem = re.sub(r"[^a-z0-9]+", "-", NAMES.get(row.axis, row.axis).lower()).strip("-")
            numbers[stem] += 1
            yield _drawing(f"sweep-{stem}-{numbers[stem]}", _sweep_caption(row), figure, row.record_ids)


def _sweep_caption(row: SweepRow) -> str:
    axis = axis_of(row.axis)
    drawn = axis.formula is not None and not row.overlaps and len(set(row.workloads)) == 1
    formula = _FORMULA.format(name=axis.formula_name) if drawn else ""
    borrowed = f" Also shown: the cell of {', '.join(row.borrowed)}, the same jobs." if row.borrowed else ""
    return f"{_SWEEP}{formula}{borrowed} {row.title}, {row.evidence}."


def _papers_drawing(case: PaperCase) -> Iterator[Drawing]:
    from analysis.sharing import sweep_plots

    figure = sweep_plots.papers_case(case.sweeps, case.level)
    if figure is not None:
        yield _drawing(case.name, case.caption, figure, tuple(i for row in case.sweeps for i in row.record_ids))


def _optimiser_drawings(row: OptimiserRow, number: int) -> Iterator[Drawing]:
    from analysis.sharing import plots as sharing_plots

    ids = tuple(dict.fromkeys(i for one in row.rows for i in one.record_ids))
    speed = _SPEED.format(plain=row.plain)
    yield _drawing(f"optimisers-speed-{number}", speed, sharing_plots.optimisers_speed(row), ids)
    yield _drawing(f"optimisers-exposed-{number}", _EXPOSED, sharing_plots.optimisers_exposed(row), ids)


def _drawing(name: str, caption: str, figure: Figure, ids: tuple[str, ...]) -> Drawing:
    return Drawing(name=name, topic="sharing", caption=caption, figure=figure, record_ids=ids)


def _ids(pairs: Iterable[PairRow]) -> tuple[str, ...]:
    return tuple(i for pair in pairs for row in pair.rows for i in row.record_ids)
