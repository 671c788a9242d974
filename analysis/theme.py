"""The look of every figure: seaborn's theme at one column's width, one ink, one colour a series.

Ink is a single colour so that the report can replace it by the colour of its text.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import Formatter, LogFormatterMathtext

from analysis.naming import wrap
from analysis.rows import CellRow, SharingRow
from analysis.stats import Interval

INK = "#1b1e23"
GRID = "#8a919c"
WIDTH_IN = 3.5
NAME_COLUMNS = 26
BAR_IN, LINE_IN = 0.23, 0.115  # heights of a bar with its gap, and of a line of its name
NAME_GAP_LINES = 0.6  # between names of several lines
ENTRY_GAP_IN = 0.045  # between entries of a legend
HEADING_COLUMNS = 48
IDEAL = "no communication (ideal)"
LONGEST_TITLE = 62
# Of seaborn's palette "colorblind": what is not grey and not too pale to tell from paper.
_STRONG = (0, 1, 2, 3, 4, 5, 9)
_GREY = 7
_LIGHTNESS = 0.45
_LINES: dict[str, Any] = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_RAISED = str.maketrans("0123456789-−", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁻")
_SIZES: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
_RANGE: dict[str, Any] = {"color": INK, "linestyle": (0, (1, 1.2)), "linewidth": 0.9, "zorder": 2}
_OUTPUT: dict[str, Any] = {
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "text.parse_math": False,  # a "$" in a name is a "$"
    "svg.hashsalt": "crossover-bench",
    "pdf.fonttype": 42,
}


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure, and nothing of it left behind."""
    theme = sns.axes_style("whitegrid", rc=_LINES) | sns.plotting_context("paper", rc=_SIZES) | _OUTPUT
    with mpl.rc_context(theme):
        yield


class PlainPowers(Formatter):
    """What a logarithmic axis writes at its ticks, as letters: `10³`, since the figures' texts hold no mathematics."""

    def __init__(self, inner: Formatter) -> None:
        self._inner = inner

    def set_locs(self, locs: Any) -> None:
        """Ticks decide which of them have a label."""
        self._inner.set_locs(locs)

    def __call__(self, x: float, pos: int | None = None) -> str:
        """`10³` for 1000."""
        text = re.sub(r"\$\\mathdefault\{(.*)\}\$", r"\1", self._inner(x, pos)).replace(r"\times", "×")
        return re.sub(r"\^\{(.*?)\}", lambda found: found[1].translate(_RAISED), text)


def write_plain_powers(figure: Figure) -> None:
    """Have every logarithmic axis write its ticks without mathematics."""
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if isinstance(major := axis.get_major_formatter(), LogFormatterMathtext):
            axis.set_major_formatter(PlainPowers(major))
        if isinstance(minor := axis.get_minor_formatter(), LogFormatterMathtext):
            axis.set_minor_formatter(PlainPowers(minor))


@cache
def palette() -> tuple[str, ...]:
    """Colours that colour-blind readers tell apart, dark enough for white paper and light enough for dark."""
    base = sns.color_palette("colorblind")
    return tuple(_limited(base[place]) for place in _STRONG)


@cache
def neutral() -> str:
    """The grey of what is a reference rather than a rival."""
    return _limited(sns.color_palette("colorblind")[_GREY])


def _limited(colour: Any) -> str:
    lightness = min(_LIGHTNESS, (max(colour) + min(colour)) / 2)
    return mpl.colors.to_hex(sns.set_hls_values(colour, l=lightness))


def colours(labels: Sequence[str], baseline: str | None) -> dict[str, str]:
    """A colour for each label, the baseline neutral; beyond the palette colours return, markers tell them apart."""
    others = [label for label in labels if label != baseline]
    chosen = {label: palette()[place % len(palette())] for place, label in enumerate(others)}
    return chosen | ({baseline: neutral()} if baseline else {})


def canvas(height_in: float, width_in: float = WIDTH_IN) -> tuple[Figure, Axes]:
    """An empty figure, one column wide. Not known to pyplot, so nothing has to close it."""
    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def panels(height_in: float, *, below: float) -> tuple[Figure, Axes, Axes]:
    """A figure of two axes over one x axis, the lower one `below` times as high as the upper."""
    figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(1.0, below))
    return figure, upper, lower


def bars(count: int, extra_in: float = 0.0) -> tuple[Figure, Axes]:
    """A figure with room for `count` horizontal bars and `extra_in` inches of legend."""
    figure, axes = canvas(0.95 + BAR_IN * count + extra_in)
    axes.grid(axis="y", visible=False)
    return figure, axes


def names(axes: Axes, texts: Sequence[str]) -> None:
    """Write `texts` beside the bars, the first on top."""
    axes.set_yticks(range(len(texts)), with_room(axes, texts))
    axes.set_ylim(len(texts) - 0.4, -0.6)


def with_room(axes: Axes, texts: Sequence[str]) -> list[str]:
    """`texts` in lines, one beside each bar; the figure grows where neighbours would run into each other."""
    written = [folded(text) for text in texts]
    num_lines = [text.count("\n") + 1 for text in written]
    # A line between neighbours, where one of them has several, shows where each ends.
    pairs = [pair for pair in pairwise(num_lines) if max(pair) > 1]
    needed_in = LINE_IN * max((sum(pair) / 2 + NAME_GAP_LINES for pair in pairs), default=0.0)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.set_figheight(figure.get_figheight() + len(texts) * max(0.0, needed_in - BAR_IN))
    return written


def folded(name: str) -> str:
    """Long names in several lines, so that bars keep most of the width."""
    return "\n".join(line.strip() for line in wrap(name, NAME_COLUMNS).split("\n"))


def heading(axes: Axes, place: float, text: str) -> None:
    """What stands over a group of bars, in the place of a bar."""
    drawn = axes.annotate(
        textwrap.fill(text, HEADING_COLUMNS), (0, place + 0.1), (3, 0), textcoords="offset points", va="center",
        fontsize=6.5,
    )  # fmt: skip
    drawn.set_in_layout(False)  # it may run past the axes; the bars keep their width


def one_by_one(axes: Axes, heading_at: float, last: float) -> None:
    """The line of no gain beside one group of bars, so that it does not cross the heading."""
    axes.plot([1, 1], [heading_at + 0.5, last + 0.5], color=INK, linewidth=0.8, zorder=0.5)


def label(axes: Axes, title: str, x_label: str) -> None:
    """Title over the whole width, name of the x axis with its unit under the axis."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.suptitle(textwrap.fill(title, LONGEST_TITLE), x=0.01, ha="left", fontsize=8)
    axes.set_xlabel(x_label, loc="right")
    axes.set_ylabel("")


def legend(figure: Figure, handles: Sequence[Patch | Line2D], *, columns: int) -> None:
    """A legend under the axes."""
    figure.legend(handles=list(handles), loc="outside lower left", ncols=columns, handlelength=1.6, columnspacing=1.0)


def legend_in(labels: Sequence[str], *, columns: int) -> float:
    """The height in inches of a legend of these entries, which may have several lines each."""
    heights = [LINE_IN * (text.count("\n") + 1) + ENTRY_GAP_IN for text in labels]
    return max(float(column.sum()) for column in np.array_split(heights, columns))  # as matplotlib divides them


def ideal_line(axes: Axes, position: float) -> Line2D:
    """Draw where the line without communication stands; the legend's entry for it."""
    drawn: dict[str, Any] = {"color": INK, "linestyle": "--", "linewidth": 0.9}
    axes.axvline(position, **drawn)
    return Line2D([], [], label=IDEAL, **drawn)


def diamond() -> dict[str, Any]:
    """How a second measure of the same thing is marked."""
    return {"marker": "D", "markersize": 3.5, "markerfacecolor": "none", "color": INK, "linestyle": "none"}


def whisker(axes: Axes, place: float, value: Interval) -> None:
    """The interval of a horizontal bar, a range dotted and without ends; nothing where its bounds are unknown."""
    if value.has_bounds and value.is_range:
        axes.plot([value.low, value.high], [place, place], **_RANGE)
    elif value.has_bounds:
        spread = [[max(0.0, value.median - value.low)], [max(0.0, value.high - value.median)]]
        axes.errorbar(value.median, place, xerr=spread, color=INK, linewidth=0.9, capsize=2, capthick=0.9)


@dataclass(frozen=True, slots=True)
class Tag:
    """The name of a curve, to be written beside its end at this height."""

    text: str
    y: float
    colour: str


def name_curves(axes: Axes, x: float, tags: Sequence[Tag], gap: float) -> None:
    """Write every name right of `x` at its height, moved apart where they would come closer than `gap` (in data), with
    a rim that parts it from a line behind it."""
    rim = withStroke(linewidth=2.5, foreground=axes.get_facecolor())
    places: list[float] = []
    ordered = sorted(tags, key=lambda tag: tag.y)
    for tag in ordered:
        places.append(max(tag.y, places[-1] + gap) if places else tag.y)
    shift = (sum(places) - sum(tag.y for tag in ordered)) / max(1, len(ordered))
    for tag, y in zip(ordered, places, strict=True):
        axes.annotate(
            tag.text, (x, y - shift), (6, 0), textcoords="offset points", va="center", fontsize=6.5, color=tag.colour,
            annotation_clip=False, path_effects=[rim],
        )  # fmt: skip


def error_bars(axes: Axes, x: Sequence[float], values: Sequence[Interval], **drawn: Any) -> None:
    """A curve of medians with an upright interval at each, a range dotted; nothing where the bounds are unknown."""
    known = [value.has_bounds and not value.is_range for value in values]
    spread = [
        [max(0.0, v.median - v.low) if is_known else np.nan for v, is_known in zip(values, known, strict=True)],
        [max(0.0, v.high - v.median) if is_known else np.nan for v, is_known in zip(values, known, strict=True)],
    ]
    for at, value in zip(x, values, strict=True):
        if value.has_bounds and value.is_range:
            axes.plot([at, at], [value.low, value.high], **_RANGE | {"color": drawn.get("color", INK)})
    medians = [value.median for value in values]
    axes.errorbar(x, medians, yerr=spread, elinewidth=0.9, capsize=1.8, capthick=0.9, **drawn)


def repeats(rows: Sequence[CellRow] | Sequence[SharingRow]) -> str:
    """`n = 3`, or `n = 2–3` where rows differ."""
    return repeats_of([row.num_repeats for row in rows])


def repeats_of(counts_of_rows: Sequence[int]) -> str:
    """The same from the numbers themselves."""
    counts = sorted(set(counts_of_rows))
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]}–{counts[-1]}"
