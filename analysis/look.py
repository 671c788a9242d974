"""The look of every figure: one column wide, readable at that size, one ink, one colour a series.

Ink is a single colour so that the report can replace it by the colour of its text.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.typing import RcKeyType

INK = "#1b1e23"
GRID = "#8a919c"
WIDTH_IN = 3.5
LONGEST_NAME = 20
LONGEST_TITLE = 62
# Okabe-Ito and its seaborn "colorblind" relatives that keep 3:1 contrast on white and on dark paper.
PALETTE = ("#0173b2", "#de8f05", "#029e73", "#d55e00", "#b35fa3", "#3b9ed6", "#a9713f", "#8c8c00", "#7a68c9")
NEUTRAL = "#7d858f"
STYLE: dict[RcKeyType, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "svg.hashsalt": "crossover-bench",
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure, and nothing of it left behind."""
    with mpl.rc_context(STYLE):
        yield


def colours(labels: Sequence[str], baseline: str | None) -> dict[str, str]:
    """A colour for each label, the baseline neutral; beyond the palette colours return, markers tell them apart."""
    others = [label for label in labels if label != baseline]
    chosen = {label: PALETTE[place % len(PALETTE)] for place, label in enumerate(others)}
    return chosen | ({baseline: NEUTRAL} if baseline else {})


def canvas(height_in: float) -> tuple[Figure, Axes]:
    """An empty figure of one column's width. Not known to pyplot, so nothing has to close it."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def bars(count: int, extra_in: float = 0.0) -> tuple[Figure, Axes]:
    """A figure with room for `count` horizontal bars and `extra_in` inches of legend."""
    figure, axes = canvas(0.95 + 0.23 * count + extra_in)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def names(axes: Axes, texts: Sequence[str]) -> None:
    """Write `texts` beside the bars, the first on top."""
    axes.set_yticks(range(len(texts)), [two_lines(text) for text in texts])
    axes.set_ylim(len(texts) - 0.4, -0.6)


def two_lines(name: str) -> str:
    """Long strategies break before their first addition, so that bars keep most of the width."""
    head, plus, rest = name.partition("+")
    return f"{head}\n+{rest}" if plus and len(name) > LONGEST_NAME else name


def label(axes: Axes, title: str, x_label: str) -> None:
    """Title over the whole width, name of the x axis with its unit under the axis."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.suptitle(textwrap.fill(title, LONGEST_TITLE), x=0.01, ha="left", fontsize=8)
    axes.set_xlabel(x_label, loc="right")


def legend(figure: Figure, handles: Sequence[Patch | Line2D], *, columns: int) -> None:
    """A legend under the axes."""
    figure.legend(handles=list(handles), loc="outside lower left", ncols=columns, handlelength=1.6, columnspacing=1.0)
