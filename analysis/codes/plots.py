"""Figures of compression: bits beside time, links on which methods pay, time to the target. Imported only to draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator

from analysis import theme
from analysis.codes.rows import MethodRow, PaysBelow, SoonerRow, Threshold
from analysis.stats import Interval
from analysis.steps.plots import FULL_WIDTH_IN, looks
from analysis.wording import number

LEGEND_COLUMNS = 4
LEAST_BITS = 0.01
BEYOND = 1.6  # of the highest rate: where what pays on all rates is drawn


def bits_and_time(rows: Sequence[MethodRow]) -> Figure:
    """Bits a parameter on a logarithmic axis, and beside them the step with what of it coding took, a bar a method.

    Bits are dots: a logarithmic axis has no zero to start bars from.
    """
    figure = Figure(figsize=(FULL_WIDTH_IN, 1.15 + 0.24 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    bits, time = figure.subplots(1, 2, sharey=True)
    blue, orange, _, _, violet, *_ = theme.palette()
    sent: dict[str, Any] = {"color": blue, "marker": "o", "markersize": 4.5, "linestyle": "none"}
    for place, row in enumerate(rows):
        assert row.step_time_s is not None
        if row.bits is not None:
            bits.plot(row.bits, place, **sent)
            bits.annotate(
                number(row.bits), (row.bits, place), (5, 0), textcoords="offset points", va="center", fontsize=6
            )
        if row.theory_bits is not None:
            bits.plot(row.theory_bits, place, **theme.diamond())
        time.barh(place, 1e3 * row.step_time_s.median, height=0.6, color=theme.neutral(), linewidth=0)
        theme.whisker(time, place, row.step_time_s.times(1e3))
        encode_s, decode_s = row.compress_s or 0.0, row.phases.decompress_s or 0.0
        time.barh(place, 1e3 * encode_s, height=0.28, color=orange, linewidth=0)
        time.barh(place, 1e3 * decode_s, left=1e3 * encode_s, height=0.28, color=violet, linewidth=0)
    bits.set_xscale("log")
    known = [value for row in rows for value in (row.bits, row.theory_bits) if value]
    bits.set_xlim(max(LEAST_BITS, min(known, default=1.0) / 2), 100)
    bits.xaxis.set_major_formatter("{x:g}")
    bits.set_xlabel("bits per parameter, step and rank (log)", loc="right")
    time.set_xlim(left=0)
    time.set_xlabel(
        f"ms per step ({rows[0].evidence_text}, {theme.repeats_of([len(row.by_repeat) for row in rows])})", loc="right"
    )
    for part in (bits, time):
        part.grid(axis="y", visible=False)
    theme.names(bits, [row.name for row in rows])
    handles: list[Patch | Line2D] = [
        Line2D([], [], **sent, label="sent"),
        Line2D([], [], **theme.diamond(), label="the code, by its paper"),
        Patch(color=theme.neutral(), label="step"),
        Patch(color=orange, label="compress: until on its way"),
        Patch(color=violet, label="decompress: after that"),
    ]
    theme.legend(figure, handles, columns=5)
    figure.suptitle(rows[0].place.describe(), x=0.01, ha="left", fontsize=8)
    return figure


def pays_below(pays: Sequence[PaysBelow]) -> Figure:
    """The rate up to which each method's step is shorter than the better of float32 and half, for one network; a
    panel a number of workers."""
    columns = sorted(dict.fromkeys((one.num_workers, one.threshold.basis, one.where) for one in pays))
    names = list(dict.fromkeys(one.name for one in pays))
    width_in = min(FULL_WIDTH_IN, 1.9 + 1.7 * len(columns))
    figure = Figure(figsize=(width_in, 1.2 + 0.22 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(columns), sharey=True, squeeze=False)[0]
    for part, column in zip(axes, columns, strict=True):
        own = [one for one in pays if (one.num_workers, one.threshold.basis, one.where) == column]
        for one in own:
            _threshold(part, names.index(one.name), one.threshold)
        lowest, highest = own[0].threshold.lowest, own[0].threshold.highest
        part.set_xscale("log")
        part.set_xlim(lowest / BEYOND**2, highest * BEYOND**2)
        part.axvspan(lowest, highest, color=theme.neutral(), alpha=0.12, linewidth=0, zorder=0)
        part.xaxis.set_major_locator(FixedLocator([lowest, highest]))
        part.xaxis.set_major_formatter(FixedFormatter([f"{lowest:g}", f"{highest:g}"]))
        part.xaxis.set_minor_locator(NullLocator())
        workers, basis, where = column
        part.set_title(f"{workers} workers, {basis},\n{where}", fontsize=6.5)
        part.grid(axis="y", visible=False)
    axes[-1].set_xlabel("Gbit/s (log)", loc="right")
    theme.names(axes[0], names)
    figure.suptitle(f"{pays[0].workload}: pays below this rate", x=0.01, ha="left", fontsize=8)
    return figure


def _threshold(axes: Axes, place: int, threshold: Threshold) -> None:
    """A bar of the rates on which it pays, or a cross where it does not at the lowest; its end with an interval."""
    start, end = threshold.lowest / BEYOND**2, threshold.gbit.median
    if end == 0:
        axes.plot(threshold.lowest / BEYOND, place, marker="x", color=theme.palette()[1], markersize=4)
    else:
        shown = threshold.highest * BEYOND if math.isinf(end) else end
        axes.barh(place, shown - start, left=start, height=0.5, color=theme.palette()[2], linewidth=0)
    if threshold.gbit.has_bounds:
        low, high = (_shown(value, threshold) for value in (threshold.gbit.low, threshold.gbit.high))
        axes.plot([low, high], [place, place], color=theme.INK, linewidth=0.9)


def _shown(value: float, threshold: Threshold) -> float:
    return min(max(value, threshold.lowest / BEYOND), threshold.highest * BEYOND)


def sooner(rows: Sequence[SoonerRow]) -> Figure | None:
    """Time to the target over rates, the dense run's over each method's; above the line is sooner. None without any."""
    drawn = [row for row in rows if row.gains]
    if not drawn:
        return None
    legend_rows = math.ceil(len(drawn) / LEGEND_COLUMNS)
    figure = Figure(figsize=(FULL_WIDTH_IN * 0.8, 2.9 + 0.14 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    styles = looks([row.name for row in drawn])
    for row in drawn:
        theme.error_bars(
            axes, [gbit for gbit, _ in row.gains], [gain for _, gain in row.gains], **styles[row.name], markersize=3.6
        )
    axes.axhline(1, color=theme.INK, linewidth=0.8, zorder=0.5)
    rates = sorted({gbit for row in drawn for gbit, _ in row.gains})
    _rate_axis(axes, rates)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("float32's time to the target\nover its own")
    handles: list[Any] = [Line2D([], [], label=row.name, markersize=3.6, **styles[row.name]) for row in drawn]
    figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS)
    repeats = _repeats(row.gains for row in drawn)
    title = f"{drawn[0].workload}: who reaches float32's target sooner ({repeats})"
    figure.suptitle(title, x=0.01, ha="left", fontsize=8)
    return figure


def gains_over_rate(curves: dict[str, list[tuple[float, Interval]]], title: str, evidence: str) -> Figure:
    """The shortest of float32's and half's steps over each method's, over the rate; intervals are over repeats."""
    legend_rows = math.ceil(len(curves) / LEGEND_COLUMNS)
    figure = Figure(figsize=(FULL_WIDTH_IN * 0.8, 2.9 + 0.14 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    styles = looks(list(curves))
    for name, points in curves.items():
        theme.error_bars(axes, [at for at, _ in points], [gain for _, gain in points], **styles[name], markersize=3.6)
    axes.axhline(1, color=theme.INK, linewidth=0.8, zorder=0.5)
    _rate_axis(axes, sorted({at for points in curves.values() for at, _ in points}))
    axes.set_ylabel("step of float32 or half\nover its own")
    handles: list[Any] = [Line2D([], [], label=name, markersize=3.6, **styles[name]) for name in curves]
    figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS)
    figure.suptitle(f"{title} ({evidence}, {_repeats(curves.values())})", x=0.01, ha="left", fontsize=8)
    return figure


def _repeats(curves: Iterable[Sequence[tuple[float, Interval]]]) -> str:
    return theme.repeats_of([value.n for points in curves for _, value in points])


def _rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(rates)))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{gbit:g}" for gbit in rates]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("Gbit/s (log)", loc="right")
