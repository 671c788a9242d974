"""Figures of methods on their way to a target. Imported only when something is drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from analysis import theme
from analysis.stats import ratio_by_repeat
from analysis.steps.plots import FULL_WIDTH_IN, looks
from analysis.targets.rows import ACCURACY, TargetRow, TargetStudy
from analysis.wording import number

ByRepeat = Callable[[TargetRow], dict[int, float]]
LEGEND_COLUMNS = 4
COLUMN_CHARACTER_IN = 0.052  # of what stands below a column
NOT_REACHED = "not\nreached"


def courses(study: TargetStudy) -> Figure | None:
    """The metric over steps, and beside it over time where there is a clock; the target as a line, ranges as bands."""
    rows = [row for row in study.rows if row.course is not None]
    if not rows:
        return None
    timed = [row for row in rows if row.course is not None and row.course.times_s]
    columns = 2 if timed else 1
    legend_rows = math.ceil((len(rows) + 1) / LEGEND_COLUMNS)
    figure = Figure(figsize=(FULL_WIDTH_IN * (0.6 + 0.2 * columns), 2.7 + 0.14 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, columns, sharey=True, squeeze=False)[0]
    styles = looks([row.name for row in rows])
    for row in rows:
        _curve(axes[0], row, styles[row.name], lambda course: course.steps)
    for row in timed:
        _curve(axes[1], row, styles[row.name], lambda course: course.times_s)
    for part in axes:
        part.axhline(study.target, color=theme.INK, linewidth=0.8, linestyle=(0, (1, 2)), zorder=0.5)
    axes[0].set_xlabel("steps")
    axes[0].set_ylabel(f"held-out {study.metric}")
    if timed:
        axes[1].set_xscale("log")
        axes[1].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes[1].xaxis.set_major_formatter("{x:g}")
        axes[1].xaxis.set_minor_locator(NullLocator())
        axes[1].set_xlabel(f"seconds of training ({study.clock})")
    _limit(axes[0], study)
    handles: list[Any] = [Line2D([], [], label=row.name, **_line(row, styles[row.name])) for row in rows]
    handles.append(Line2D([], [], color=theme.INK, linewidth=0.8, linestyle=(0, (1, 2)), label="target"))
    figure.legend(handles=handles, loc="outside lower center", ncols=LEGEND_COLUMNS)
    figure.suptitle(f"{study.title} ({study.evidence})", x=0.01, ha="left", fontsize=8, fontweight="bold")
    return figure


def _limit(axes: Axes, study: TargetStudy) -> None:
    """A diverging loss must not flatten all others: the axis ends a little beyond where all of them start."""
    starts = [row.course.mean[0] for row in study.rows if row.course is not None and math.isfinite(row.course.mean[0])]
    if study.metric == ACCURACY:
        axes.set_ylim(0, 1.02)
    elif starts:
        low = min(min(row.course.low) for row in study.rows if row.course is not None)
        axes.set_ylim(low - 0.05 * (max(starts) - low), max(starts) + 0.1 * (max(starts) - low))


def _line(row: TargetRow, style: dict[str, Any]) -> dict[str, Any]:
    drawn = {**style, "markersize": 3.0, "linewidth": 1.1}
    return drawn | ({"color": theme.INK, "linewidth": 2.0, "linestyle": "-"} if row.is_dense else {})


def _curve(axes: Axes, row: TargetRow, style: dict[str, Any], x: Callable[[Any], Sequence[float]]) -> None:
    course, drawn = row.course, _line(row, style)
    assert course is not None
    axes.plot(x(course), course.mean, markevery=max(1, len(course.mean) // 5), **drawn)
    axes.fill_between(x(course), course.low, course.high, color=drawn["color"], alpha=0.1, linewidth=0)


def prices(studies: Sequence[TargetStudy], paid: ByRepeat, title: str) -> Figure | None:
    """For each method that has one the price of the target over the dense run's, by setting; blue is cheaper. None
    without any."""
    found = {
        (row.name, place): over.median if (over := ratio_by_repeat(paid(row), paid(study.dense))) else None
        for place, study in enumerate(studies)
        for row in study.rows
    }
    priced = {name for (name, _), known in found.items() if known is not None}
    every = dict.fromkeys(row.name for study in studies for row in study.rows if not row.is_dense)
    names = [name for name in every if name in priced]
    if not names:
        return None
    shares = np.full((len(names), len(studies)), np.nan)
    texts = np.full(shares.shape, "", dtype=object)
    for (name, place), share in found.items():
        if share is not None and name in names:
            spot = names.index(name), place
            shares[spot] = np.log2(share) if math.isfinite(share) else 3.0
            texts[spot] = f"{number(share, 2)}×" if math.isfinite(share) else NOT_REACHED
    columns = [[study.workload, *study.where.split(", ")] for study in studies]
    longest = max(len(line) for lines in columns for line in lines)
    figure, axes = theme.canvas(
        0.8 + 0.1 * max(map(len, columns)) + 0.26 * len(names),
        width_in=1.9 + max(0.62, COLUMN_CHARACTER_IN * (longest + 1)) * len(studies),
    )
    sns.heatmap(
        shares, ax=axes, cmap="vlag", vmin=-3, vmax=3, cbar=False, linewidths=1, linecolor="none", annot=texts, fmt="",
        annot_kws={"fontsize": 6}, yticklabels=theme.with_room(axes, names),
        xticklabels=["\n".join(lines) for lines in columns],
    )  # fmt: skip
    axes.grid(visible=False)
    axes.tick_params(axis="x", rotation=0, labelsize=6)
    axes.tick_params(axis="y", rotation=0)
    theme.label(axes, title, "")
    return figure
