"""Figures of flows without jobs. Imported only when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from analysis import theme
from analysis.flows.rows import FRAME_BYTES, FlowRow, goodput_bps, highest_bytes, lowest_bytes, slowdowns, takes_s
from analysis.wording import duration

MARKERS = "osD^vP"
MANY_BPS = 1e10  # from there on in Gbit/s


def courses(rows: Sequence[FlowRow]) -> Figure:
    """The watched queue, and pause frames so far, over the time of the first repeat."""
    figure = _wide()
    queue, pauses = figure.subplots(1, 2)
    for colour, row in zip(_colours(rows), rows, strict=True):
        run = row.runs[min(row.runs)]
        times_ms = 1e3 * np.array(run.times_s)
        name = f"{row.label}, {goodput_bps(run) / 1e9:.1f} Gbit/s"
        queue.plot(times_ms, np.array(run.queue_bytes) / 1e3, color=colour, label=name)
        pauses.plot(times_ms, run.num_pauses, color=colour)
    # Queues differ by a factor of a thousand; an empty one stands on the axis.
    queue.set_yscale("symlog", linthresh=1.0)
    queue.set_ylim(0, None)
    queue.set_ylabel("queue, kB")
    pauses.set_ylabel("pause frames so far")
    pauses.set_ylim(0, None)
    for axes in (queue, pauses):
        axes.set_xlabel("ms")
    figure.legend(loc="outside lower center", ncols=len(rows))
    return figure


def completions(rows: Sequence[FlowRow]) -> Figure:
    """The share of flows that took at most so many times as long as alone, all repeats together."""
    figure, axes = theme.canvas(2.5)
    for colour, row in zip(_colours(rows), rows, strict=True):
        pooled = np.sort([each for run in row.runs.values() for each in slowdowns(run)])
        share = np.arange(1, len(pooled) + 1) / len(pooled)
        axes.plot(pooled, share, color=colour, label=f"{row.label}, mean {pooled.mean():.1f}")
    axes.set_xscale("log")
    axes.set_xlim(1, None)
    axes.set_ylim(0, 1)
    _plain(axes)
    axes.set_xlabel("completion over time alone")
    axes.set_ylabel("share of flows")
    axes.legend(loc="lower right")
    return figure


def bars(rows: Sequence[FlowRow]) -> Figure:
    """What flows take in each group, a bar per label, relative to the slowest of the group."""
    groups = list(dict.fromkeys(row.group for row in rows))
    labels = list(dict.fromkeys(row.label for row in rows))
    colours = dict(zip(labels, _colours(labels), strict=True))
    figure, axes = theme.bars(len(rows) + len(groups))
    place, middles = 0.0, []
    for group in groups:
        own = [row for row in rows if row.group == group]
        taken_s = [row.value(takes_s).median for row in own]
        for row, each_s in zip(own, taken_s, strict=True):
            axes.barh(place, each_s / max(taken_s), height=0.8, color=colours[row.label])
            axes.annotate(
                duration(each_s), (each_s / max(taken_s), place), xytext=(3, 0), textcoords="offset points",
                va="center", fontsize=6.5,
            )  # fmt: skip
            place += 1.0
        middles.append(place - (len(own) + 1) / 2)
        place += 0.7
    axes.set_yticks(middles, [group.partition("-")[2] for group in groups])
    axes.set_ylim(place - 1.0, -0.7)
    axes.set_xlim(0, 1.25)
    axes.set_xlabel("time over that of the slowest way")
    theme.legend(figure, [Patch(color=colours[label], label=label) for label in labels], columns=len(labels))
    return figure


def sweep(rows: Sequence[FlowRow]) -> Figure:
    """Goodput over the axis, a curve per label, with intervals over repeats."""
    figure, axes = theme.canvas(2.4)
    labels = list(dict.fromkeys(row.label for row in rows))
    curves = [sorted((row for row in rows if row.label == label), key=lambda row: row.at or 0.0) for label in labels]
    highest_bps = max(rows[0].line_bps, *(1.05 * row.value(goodput_bps).median for row in rows))
    unit, name = (1e9, "Gbit/s") if highest_bps > MANY_BPS else (1e6, "Mbit/s")
    for place, (colour, own) in enumerate(zip(_colours(labels), curves, strict=True)):
        values = [row.value(goodput_bps).times(1 / unit) for row in own]
        theme.error_bars(
            axes, [row.at or math.nan for row in own], values, color=colour, marker=MARKERS[place], markersize=3,
            label=labels[place],
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, highest_bps / unit)
    axes.set_xticks(sorted({row.at or 0.0 for row in rows}))
    _plain(axes)
    axes.set_xlabel(rows[0].axis)
    axes.set_ylabel(f"goodput, {name}")
    figure.legend(loc="outside lower center", ncols=len(labels))
    return figure


def limit_cycles(rows: Sequence[FlowRow]) -> Figure:
    """The highest and lowest queue over the number of flows, beside DCTCP's own analysis (SIGCOMM 2010, section 3.3).

    Of N flows in step the queue swings from K + N − √(N·(C·RTT + K)/2) to K + N packets.
    """
    figure, axes = theme.canvas(2.4)
    ordered = sorted(rows, key=lambda row: row.at or 0.0)
    flows = np.array([row.at or 0.0 for row in ordered])
    run = next(iter(ordered[0].runs.values()))
    mark = (run.mark_bytes or 0.0) / FRAME_BYTES
    product = run.least_round_trip_s * ordered[0].line_bps / 8 / FRAME_BYTES
    own, other = theme.palette()[0], theme.neutral()
    for name, figure_of, marker in (("highest", highest_bytes, "^"), ("lowest", lowest_bytes, "v")):
        values = [row.value(figure_of).times(1 / FRAME_BYTES) for row in ordered]
        theme.error_bars(axes, flows.tolist(), values, color=own, marker=marker, markersize=4, label=f"{name} here")
    fine = np.linspace(1, flows.max(), 200)
    axes.plot(fine, mark + fine, color=other, linestyle="--", label="K + N")
    swing = np.sqrt(fine * (product + mark) / 2)
    axes.plot(fine, np.maximum(0, mark + fine - swing), color=other, linestyle=":", label="K + N − A")
    axes.set_ylim(0, None)
    axes.set_xlabel(rows[0].axis)
    axes.set_ylabel("queue, packets")
    axes.legend(loc="upper left")
    return figure


def _colours(rows: Sequence[object]) -> Sequence[str]:
    return [theme.palette()[place % len(theme.palette())] for place in range(len(rows))]


def _wide() -> Figure:
    figure = Figure(figsize=(2 * theme.WIDTH_IN, 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _plain(axes: Axes) -> None:
    """Numbers rather than powers on a logarithmic axis."""
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
