"""Objectives over rounds, a figure per problem and a curve per way to solve it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from analysis.problems.rows import ProblemRow, has_diverged
from analysis.rows import Drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOPIC = "problems"
TICKS = (1, 1.5, 2, 3, 5, 10, 20, 50, 100)
FAR = 1e6  # where a curve that diverges ends
CAPTION = (
    "The objective over that of the lowest end, round by round, of the problem {name}. Lines: medians; bands: all "
    "repeats. Repeats are seeds, which draw the problem."
)


def problem_drawings(rows: Sequence[ProblemRow]) -> Iterator[Drawing]:
    """One figure for each problem."""
    for name in dict.fromkeys(row.group for row in rows):
        own = [row for row in rows if row.group == name]
        yield Drawing(
            name=f"{TOPIC}-{name}",
            topic=TOPIC,
            caption=CAPTION.format(name=name),
            figure=objectives(own),
            record_ids=tuple(i for row in own for i in row.ids),
        )


def objectives(rows: Sequence[ProblemRow]) -> Figure:
    """The curves of one problem; one that diverges leaves the axes."""
    from matplotlib.ticker import NullLocator

    from analysis import theme

    figure, axes = theme.canvas(2.6)
    # each seed has a problem of its own, and so an end of its own
    lowest: dict[int, float] = {}
    for row in rows:
        for repeat, run in row.runs.items():
            lowest[repeat] = min(run[-1], lowest.get(repeat, np.inf))
    for place, row in enumerate(rows):
        length = max(len(run) for run in row.runs.values())
        curves = np.full((len(row.runs), length), np.inf)
        for curve, (repeat, run) in zip(curves, row.runs.items(), strict=True):
            curve[: len(run)] = np.asarray(run) / lowest[repeat]
        curves = np.minimum(curves, FAR)
        colour, rounds = theme.palette()[place % len(theme.palette())], np.arange(1, length + 1)
        num_diverged = sum(has_diverged(run) for run in row.runs.values())
        name = f"{row.label}, {num_diverged} of {len(row.runs)} diverged" if num_diverged else row.label
        axes.plot(rounds, np.median(curves, axis=0), color=colour, label=name)
        axes.fill_between(rounds, curves.min(axis=0), curves.max(axis=0), color=colour, alpha=0.15, linewidth=0)
    most = 1.5 * max(row.runs[repeat][0] / lowest[repeat] for row in rows for repeat in row.runs)
    axes.set_yscale("log")
    axes.set_ylim(0.98, most)
    axes.set_yticks([tick for tick in TICKS if tick <= most])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(1, None)
    axes.set_xlabel("rounds")
    axes.set_ylabel("objective over the lowest end")
    figure.legend(loc="outside lower left", ncols=2)
    return figure
