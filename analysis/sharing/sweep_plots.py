"""Figures of sweeps: gain along an axis with the theory's lines, measured over predicted beneath. Only when drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from analysis import theme
from analysis.sharing.axes import JOBS, Axis, Scale, axis_of
from analysis.sharing.rows import CROSSOVER, FAIR, SeriesRow, SweepRow
from analysis.stats import Interval
from analysis.theme import Tag
from analysis.wording import number

FAIR_WAY = f"{CROSSOVER}, {FAIR} link"
BOUND = "predicted Σt/T*"
LINE_HEIGHT = 0.068  # of the upper axes: what a direct label needs
ROOM = 0.42  # of the axis, for the labels right of it


@dataclass(frozen=True, slots=True)
class WayLook:
    """How a policy is drawn everywhere: a place in the palette (None: grey), a marker and a dash."""

    place: int | None
    marker: str = "o"
    dash: str = "-"

    @property
    def colour(self) -> str:
        return theme.neutral() if self.place is None else theme.palette()[self.place]


WAYS: dict[str, WayLook] = {
    CROSSOVER: WayLook(2, "o"),
    FAIR_WAY: WayLook(0, "s", "--"),
    "hold": WayLook(None, "v", ":"),
    "naive": WayLook(1, "^", "-."),
    "slot-barrier": WayLook(4, "D", "--"),
    "weighted": WayLook(5, "P", "--"),
    "muri": WayLook(6, "X", ":"),
    "tick-tock": WayLook(None, "<", "--"),
    "cassini": WayLook(None, ">", "-."),
}


def way_look(way: str) -> WayLook:
    """A policy that is not in the table is grey."""
    return WAYS.get(way, WayLook(None))


def sweep(row: SweepRow, highest: float | None = None) -> Figure | None:
    """Gain along the axis; None below two values. `highest` lets sweeps of one axis share their scale."""
    if len(row.values) < 2:
        return None
    axis = axis_of(row.axis)
    figure, upper, lower = theme.panels(3.1, below=0.3)
    _scale(upper, axis, row.values)
    top = (highest or greatest(row)) * 1.06
    upper.set_ylim(min(0.9, _least(row) * 0.97), top)
    gap = LINE_HEIGHT * (upper.get_ylim()[1] - upper.get_ylim()[0])
    last = row.values[-1]
    tags = [_curve(upper, series) for series in row.series if len(series.points) > 1]
    others = [_theory(upper, row, axis), _level(upper, row)]
    theme.name_curves(upper, last, [*tags, *(tag for tag in others if tag is not None)], gap)
    for at, lone in _by_lone_value(row).items():
        theme.name_curves(upper, at, [_curve(upper, series) for series in lone], gap)
    _one(upper, row.values)
    _shares(lower, row)
    theme.label(upper, row.title, "")
    upper.set_ylabel("gain, one by one = 1")
    lower.set_xlabel(f"{axis.label} ({row.evidence}, {theme.repeats(row.rows)})", loc="right")
    return figure


def greatest(row: SweepRow) -> float:
    """The highest thing that is drawn."""
    tops = [_high(gain) for one in row.rows if (gain := one.throughput)] + [_high(bound) for _, bound in row.bounds]
    return max(tops)


def _least(row: SweepRow) -> float:
    return min(gain.low if gain.has_bounds else gain.median for one in row.rows if (gain := one.throughput))


def _high(value: Interval) -> float:
    return value.high if value.has_bounds else value.median


def _scale(axes: Axes, axis: Axis, values: Sequence[float]) -> None:
    """Ticks where something was measured, and room for the curves' names at the right."""
    first, last = values[0], values[-1]
    if axis.scale is Scale.LOG:
        axes.set_xscale("log")
        span = last / first
        axes.set_xlim(first / span**0.05, last * span**ROOM)
    else:
        axes.set_xlim(first - 0.05 * (last - first), last + ROOM * (last - first))
    axes.xaxis.set_major_locator(FixedLocator(list(values)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:g}" for value in values]))
    axes.xaxis.set_minor_locator(NullLocator())


def _curve(axes: Axes, series: SeriesRow) -> Tag:
    drawn = way_look(series.way)
    known = [(at, row.throughput) for at, row in series.points if row.throughput is not None]
    theme.error_bars(
        axes, [at for at, _ in known], [gain for _, gain in known], color=drawn.colour, marker=drawn.marker,
        linestyle=drawn.dash, markersize=3.2, zorder=3 if series.way == CROSSOVER else 2.5,
    )  # fmt: skip
    return Tag(series.way, known[-1][1].median, drawn.colour)


def _by_lone_value(row: SweepRow) -> dict[float, list[SeriesRow]]:
    """Policies measured at one value alone, by that value."""
    found: dict[float, list[SeriesRow]] = {}
    for series in row.series:
        if len(series.points) == 1 and series.points[0][1].throughput is not None:
            found.setdefault(series.points[0][0], []).append(series)
    return found


def _theory(axes: Axes, row: SweepRow, axis: Axis) -> Tag | None:
    """The bound from measured c, m, t, and the formula for jobs that are alike and overlap nothing."""
    if axis.formula is not None and not row.overlaps and row.num_jobs is not None and len(set(row.workloads)) == 1:
        first, last = row.values[0], row.values[-1]
        x = np.geomspace(first, last, 200) if axis.scale is Scale.LOG else np.linspace(first, last, 200)
        axes.plot(x, [axis.formula(float(at), row.num_jobs) for at in x], color=theme.INK, linewidth=0.8, zorder=2)
        if axis.formula_name and row.num_jobs == 2:
            _formula_name(axes, axis.formula_name)
    if not row.bounds:
        return None
    x_bound, values = [at for at, _ in row.bounds], [bound.median for _, bound in row.bounds]
    colour = theme.palette()[3]
    axes.plot(x_bound, values, color=colour, marker="_", markersize=7, markeredgewidth=1.6, linestyle=":", zorder=2.2)
    return Tag(BOUND, values[-1], colour)


def _formula_name(axes: Axes, name: str) -> None:
    """In the upper left corner, which no curve that starts at the axis reaches, beside a piece of its line."""
    axes.annotate(f"— {name}", (0.02, 0.97), xycoords="axes fraction", ha="left", va="top", fontsize=6.5)


def _one(axes: Axes, values: Sequence[float]) -> None:
    """The line of no gain, as far as something was measured, so that it crosses no name."""
    axes.plot(_ends(values), [1, 1], color=theme.INK, linewidth=0.8, zorder=0.5)


def _ends(values: Sequence[float]) -> list[float]:
    return [values[0], values[-1]]


def _level(axes: Axes, sweep: SweepRow) -> Tag | None:
    """A policy that does not depend on the axis, as a line with the band of its interval."""
    row = sweep.level
    if row is None or row.throughput is None:
        return None
    drawn, gain = way_look(row.way), row.throughput
    axes.plot(_ends(sweep.values), [gain.median] * 2, color=drawn.colour, linestyle=drawn.dash, zorder=2.4)
    if gain.has_bounds:
        axes.fill_between(_ends(sweep.values), gain.low, gain.high, color=drawn.colour, alpha=0.15, linewidth=0)
    return Tag(row.way, gain.median, drawn.colour)


def _shares(axes: Axes, row: SweepRow) -> None:
    """Measured over predicted gain of crossover; naive and others do not claim to reach it."""
    shown: list[Interval] = []
    for series in (series for series in row.series if series.way in (CROSSOVER, FAIR_WAY)):
        known = [(at, one.bound_share) for at, one in series.points if one.bound_share is not None]
        drawn = way_look(series.way)
        style: dict[str, Any] = {"color": drawn.colour, "marker": drawn.marker, "linestyle": drawn.dash}
        if known:
            theme.error_bars(axes, [at for at, _ in known], [share for _, share in known], markersize=2.6, **style)
            shown += [share for _, share in known]
    if row.level is not None and row.level.bound_share is not None:
        level = row.level.bound_share
        axes.plot(_ends(row.values), [level.median] * 2, color=way_look(row.level.way).colour, linewidth=1.2)
        shown.append(level)
    lows = [share.low if share.has_bounds else share.median for share in shown]
    axes.set_ylim(min([0.9, *(low - 0.02 for low in lows)]), max([1.04, *(_high(share) + 0.01 for share in shown)]))
    _one(axes, row.values)
    axes.set_ylabel("of\npredicted")


NETWORKS = {"resnet50": "ResNet-50", "vgg16": "VGG-16"}


def papers_case(sweeps: Sequence[SweepRow], claimed: float) -> Figure | None:
    """Gain of ImageNet networks over the link's rate, the abstract's claim as a dashed line. None without crossover."""
    curves = [(row, series) for row in sweeps for series in row.series if series.way == CROSSOVER]
    if not curves:
        return None
    figure, axes = theme.canvas(2.6)
    values = sorted({at for row, _ in curves for at in row.values})
    _scale(axes, axis_of(curves[0][0].axis), values)
    tags = [_papers_curve(axes, row, series, place) for place, (row, series) in enumerate(curves)]
    axes.plot([values[0], values[-1]], [claimed] * 2, color=theme.INK, linestyle="--", linewidth=0.9)
    _one(axes, values)
    bottom, top = 0.95, max(claimed + 0.05, *(greatest(row) for row, _ in curves)) * 1.03
    axes.set_ylim(bottom, top)
    claim = f"abstract's claim, {100 * (claimed - 1):.0f} %"
    gap = 0.075 * (top - bottom)
    theme.name_curves(axes, values[-1], [*tags, Tag(claim, claimed, theme.INK)], gap)
    first = curves[0][0]
    repeats = theme.repeats([one for row, _ in curves for one in row.rows])
    title = "ImageNet networks, two jobs alike under crossover"
    theme.label(axes, title, f"{axis_of(first.axis).label} ({first.evidence}, {repeats})")
    axes.set_ylabel("gain, one by one = 1")
    return figure


def _papers_curve(axes: Axes, row: SweepRow, series: SeriesRow, place: int) -> Tag:
    network = row.workloads[0].partition("-")[0]
    colour = theme.palette()[2 * (sorted(NETWORKS).index(network) if network in NETWORKS else place)]
    few = row.num_workers is not None and row.num_workers <= 4
    known = [(at, one.throughput) for at, one in series.points if one.throughput is not None]
    theme.error_bars(
        axes, [at for at, _ in known], [gain for _, gain in known], color=colour, marker="o" if few else "s",
        linestyle="-" if few else "--", markersize=3.5, markerfacecolor=colour if few else "white",
    )  # fmt: skip
    for at, bound in row.bounds:
        axes.plot(
            [at], [bound.median], color=theme.palette()[3], marker="_", markersize=9, markeredgewidth=1.4, zorder=1.9
        )
    return Tag(f"{NETWORKS.get(network, network)}, {row.num_workers} workers", known[-1][1].median, colour)


def axis_ceilings(sweeps: Sequence[SweepRow]) -> dict[str, float]:
    """The greatest gain drawn on each axis, so that its figures can be compared by eye. Not for differing k."""
    ceilings: dict[str, float] = {}
    for row in sweeps:
        if row.series and row.axis != JOBS:
            ceilings[row.axis] = max(greatest(row), ceilings.get(row.axis, 0.0))
    return ceilings


def median_text(value: Interval | None) -> str:
    """`1.42×`, empty where nothing was measured."""
    return "" if value is None else f"{number(value.median)}×"
