"""Figures of policies side by side, and of optimisers alone and with crossover. Imported only when drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import theme
from analysis.sharing.rows import CROSSOVER, NAIVE, PHASE, OptimisedRow, OptimiserRow, PairRow
from analysis.sharing.sweep_plots import FAIR_WAY, WAYS, median_text, way_look
from analysis.stats import Interval

# From what wastes most to what should waste least.
ORDER = ("hold", NAIVE, "tick-tock", "cassini", "muri", "slot-barrier", "weighted", FAIR_WAY, CROSSOVER)
NAME_SHIFT = 0.055  # of a step, from a point to its name
ONE_BIG_JOB = "one job, all batches"


@dataclass(frozen=True, slots=True)
class Bar:
    """A policy's gain; `lowest` and `highest` where it depends on the start offset."""

    name: str
    way: str
    gain: Interval
    lowest: float | None = None
    highest: float | None = None


def is_headline(pair: PairRow) -> bool:
    """Whether different jobs met more rivals than hold and one naive start."""
    return pair.is_mixed and len({row.way for row in pair.rows} & (set(WAYS) - {"hold", NAIVE, CROSSOVER})) > 0


def bars_of(pair: PairRow) -> list[Bar]:
    """The bars of one pair in the order of the figure: naive from several offsets is one bar with a range."""
    found = [
        Bar(row.way, row.way, row.throughput)
        for row in pair.rows
        if row.throughput is not None and not row.is_reference and row.axis != PHASE
    ]
    if pair.phases is not None:
        found = [bar for bar in found if bar.way != NAIVE]
        name = f"naive, {pair.phases.num_phases} offsets"
        found.append(Bar(name, NAIVE, pair.phases.median, pair.phases.lowest, pair.phases.highest))
    if pair.rival is not None:
        found.append(Bar(ONE_BIG_JOB, ONE_BIG_JOB, pair.rival.throughput))
    return sorted(found, key=lambda bar: (ORDER.index(bar.way) if bar.way in ORDER else -1, bar.name))


def headline(pairs: Sequence[PairRow]) -> Figure | None:
    """Gain of every policy for every pair of one fabric, the predicted gain as a mark across each bar."""
    shown = [(pair, bars_of(pair)) for pair in pairs]
    count = sum(len(bars) for _, bars in shown)
    if count == 0:
        return None
    figure, axes = theme.bars(count + len(shown), extra_in=0.2)
    ticks: list[tuple[int, str]] = []
    place = -1
    for pair, bars in shown:
        place += 1
        theme.heading(axes, place, " + ".join(work[0] for work in pair.work))
        bound = next((row.bound for row in pair.rows if row.policy == CROSSOVER), None)
        for bar in bars:
            place += 1
            _bar(axes, place, bar, bound)
            ticks.append((place, bar.name))
        theme.one_by_one(axes, place - len(bars), place)
    axes.set_yticks([position for position, _ in ticks], [theme.folded(name) for _, name in ticks])
    axes.set_ylim(place + 0.6, -0.6)
    axes.set_xlim(0, max(_right(bar) for _, bars in shown for bar in bars) * 1.22)
    theme.legend(figure, _handles(), columns=2)
    repeats = theme.repeats_of([bar.gain.n for _, bars in shown for bar in bars])
    where = f"gain, one by one = 1 ({pairs[0].evidence}, {repeats})"
    theme.label(axes, f"Different jobs on the same devices · {pairs[0].where}", where)
    return figure


def _right(bar: Bar) -> float:
    return max(bar.gain.high if bar.gain.has_bounds else bar.gain.median, bar.highest or 0.0)


def _bar(axes: Axes, place: float, bar: Bar, bound: Interval | None) -> None:
    axes.barh(place, bar.gain.median, height=0.6, color=way_look(bar.way).colour)
    if bound is not None:  # before the interval, whose ends it would hide
        axes.plot([bound.median] * 2, [place - 0.42, place + 0.42], color=theme.palette()[3], linewidth=2)
    if bar.lowest is not None and bar.highest is not None:
        axes.plot([bar.lowest, bar.highest], [place, place], color=theme.INK, linewidth=2.4, solid_capstyle="butt")
    else:
        theme.whisker(axes, place, bar.gain)
    text = median_text(bar.gain)
    axes.annotate(text, (1, place), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=6.5)


def _handles() -> list[Patch | Line2D]:
    return [
        Line2D([], [], color=theme.INK, linewidth=0.9, marker="|", markersize=4, label="95 % interval"),
        Line2D([], [], color=theme.INK, linewidth=2.4, label="all start offsets"),
        Line2D([], [], color=theme.palette()[3], linewidth=2, label="predicted gain Σt/T*"),
    ]


def optimisers_speed(row: OptimiserRow) -> Figure:
    """Throughput of every strategy alone and with crossover, the plainest alone = 1."""
    rows = [one for one in row.rows if one.alone is not None and one.together is not None]
    figure, axes = theme.bars(len(rows) + 1, extra_in=0.12)
    for place, one in enumerate(rows):
        assert one.alone is not None
        assert one.together is not None
        for shift, value, colour in (
            (-0.19, one.alone, theme.neutral()),
            (0.19, one.together, theme.palette()[2]),
        ):
            axes.barh(place + shift, value.median, height=0.36, color=colour)
            theme.whisker(axes, place + shift, value)
        axes.annotate(
            f"gain {median_text(one.gain)}", (1, place), xycoords=("axes fraction", "data"), ha="right", va="center",
            fontsize=6.5,
        )  # fmt: skip
    axes.axvline(1, color=theme.INK, linewidth=0.8, zorder=0.5)
    axes.set_xlim(0, 1.3 * max(one.together.median for one in rows if one.together is not None))
    theme.names(axes, [one.name for one in rows])
    handles: list[Patch | Line2D] = [
        Patch(color=theme.neutral(), label="alone"),
        Patch(color=theme.palette()[2], label="with crossover"),
    ]
    theme.legend(figure, handles, columns=2)
    theme.label(axes, row.title, f"throughput, {row.plain} alone = 1 ({row.evidence}, {_n(row)})")
    return figure


def optimisers_exposed(row: OptimiserRow) -> Figure:
    """Gain of crossover against what each strategy leaves exposed, with 1/(1 − exposed): a device that never waits."""
    figure, axes = theme.canvas(2.6)
    most = max(0.5, *(one.exposed_share for one in row.rows))
    x = np.linspace(0, min(most * 1.05, 0.95), 100)
    axes.plot(x, 1 / (1 - x), color=theme.INK, linewidth=0.8)
    axes.annotate("— device never idle, 1/(1 − x)", (0.02, 0.97), xycoords="axes fraction", va="top", fontsize=6.5)
    for one in row.rows:
        theme.error_bars(
            axes,
            [one.exposed_share],
            [one.gain],
            color=theme.palette()[2],
            marker="o",
            markersize=3.5,
            linestyle="none",
        )
        if one.bound is not None:
            axes.plot(
                [one.exposed_share], [one.bound.median], color=theme.palette()[3], marker="_", markersize=8,
                markeredgewidth=1.6, zorder=1.9,
            )  # fmt: skip
    axes.axhline(1, color=theme.INK, linewidth=0.8, zorder=0.5)
    tops = [max(_top(one), one.bound.median if one.bound else 0.0) for one in row.rows]
    axes.set_ylim(1 - 0.25 * (max(tops) - 1), 1 + 1.1 * (max(tops) - 1))
    axes.set_xlim(-0.02, most * 1.42)
    _names_beside(axes, row.rows)
    theme.label(axes, row.title, f"exposed communication alone, share of a step ({row.evidence}, {_n(row)})")
    axes.set_ylabel("gain of crossover")
    return figure


def _names_beside(axes: Axes, rows: Sequence[OptimisedRow]) -> None:
    """Each strategy's name right of its point and under the curve, clear of the names before and of the line at 1."""
    bottom, top = axes.get_ylim()
    gap = 0.08 * (top - bottom)
    y = top
    for one in sorted(rows, key=lambda one: (-one.gain.median, -one.exposed_share)):
        y = min(one.gain.median, y - gap)
        if abs(y - 1) < 0.6 * gap:
            y = 1 - 0.6 * gap
        axes.annotate(
            one.name, (one.exposed_share, one.gain.median), (one.exposed_share + NAME_SHIFT, y), textcoords="data",
            va="center", fontsize=6.5, arrowprops={"arrowstyle": "-", "linewidth": 0.5, "color": theme.neutral()},
        )  # fmt: skip


def _top(one: OptimisedRow) -> float:
    return one.gain.high if one.gain.has_bounds else one.gain.median


def _n(row: OptimiserRow) -> str:
    return theme.repeats_of([one.gain.n for one in row.rows])
