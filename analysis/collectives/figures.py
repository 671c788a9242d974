"""Bus bandwidth against bytes, an axis for each operation and a line for each library."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.collectives.rows import CollectiveRow
from analysis.collectives.tables import where
from analysis.rows import Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TOPIC = "collectives"
PANEL_IN = 1.55  # the height of an axis
CAPTION = (
    "Bus bandwidth (what each link carries in one direction, over time) against the size, {where}. Points: medians "
    "over repeats with 95 % intervals, ranges dotted. Dashed: the rate of the line, of which headers take 4 %."
)


def collective_drawings(rows: Sequence[CollectiveRow]) -> Iterator[Drawing]:
    """One figure for each number of ranks and rate."""
    for place in dict.fromkeys(map(where, rows)):
        here = [row for row in rows if where(row) == place and len(row.sizes) > 1]
        if here:
            yield Drawing(
                name="collectives-" + re.sub(r"[^a-z0-9]+", "-", place.lower()).strip("-"),
                topic=TOPIC,
                caption=CAPTION.format(where=place),
                figure=bus_bandwidths(here, place),
                record_ids=tuple(i for row in here for i in row.ids),
            )


def bus_bandwidths(rows: Sequence[CollectiveRow], place: str) -> Figure:
    """The figure of one place."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from analysis import theme

    operations = list(dict.fromkeys(row.operation for row in rows))
    libraries = sorted({row.library for row in rows})
    colours = dict(zip(libraries, theme.palette(), strict=False))
    height = -(-len(operations) // 2)
    figure = Figure(figsize=(2 * theme.WIDTH_IN, 0.6 + PANEL_IN * height), layout="constrained")
    panels = figure.subplots(height, min(2, len(operations)), sharex=True, sharey=True, squeeze=False)
    for axes, operation in zip(panels.flat, operations, strict=False):
        _draw(axes, [row for row in rows if row.operation == operation], colours)
        axes.set_title(operation, loc="left")
    for axes in list(panels.flat)[len(operations) :]:
        axes.set_visible(False)
    figure.suptitle(f"Bus bandwidth, Mbit/s, {place}", x=0.01, ha="left", fontsize=8)
    figure.supxlabel("bytes", x=0.99, ha="right", fontsize=7.5)
    handles = [Line2D([], [], color=colours[name], marker="o", markersize=3, label=name) for name in libraries]
    theme.legend(figure, handles, columns=len(handles))
    return figure


def _draw(axes: Axes, rows: Sequence[CollectiveRow], colours: dict[str, str]) -> None:
    from analysis import theme

    axes.set_xscale("log")
    axes.set_yscale("log")
    for row in rows:
        sizes = [own.num_bytes for own in row.sizes]
        values = [own.bus_bps.times(1e-6) for own in row.sizes]
        theme.error_bars(axes, sizes, values, color=colours[row.library], marker="o", markersize=2.5)
    rate_bps = rows[0].rate_bps
    if rate_bps is not None:
        axes.axhline(rate_bps / 1e6, color=theme.INK, linestyle="--", linewidth=0.8)
