"""Figures of pipelines. Imported only when something is drawn, since matplotlib and seaborn load slowly."""

from __future__ import annotations

from collections.abc import Sequence

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import theme
from analysis.pipelines.timelines import JobPasses, TimelineRow
from analysis.wording import percent

_DEVICE_IN = 0.17  # height of a device's row
_FILLED = 0.8  # of it by a pass
_FORWARD_TINT = 0.5  # forward passes are paler than backward ones


def bubbles(row: TimelineRow) -> Figure:
    """A row per device, a bar per pass: above one job alone, below all of them."""
    figure, upper, lower = theme.panels(1.3 + 2 * _DEVICE_IN * row.num_ranks, below=1.0)
    names = [job.name for job in row.together]
    colours = theme.colours(names, None)
    panels: Sequence[tuple[Axes, Sequence[JobPasses], str, float]] = (
        (upper, (row.alone,), f"{row.alone.name} alone", row.alone_busy),
        (lower, row.together, f"{' and '.join(names)} in turns", row.together_busy),
    )
    for axes, jobs, title, busy in panels:
        for job in jobs:
            _draw_passes(axes, job, colours[job.name], row.window_s)
        axes.set_title(f"{title}: devices compute {percent(busy)} of the time", loc="left", fontsize=7.5)
        axes.set_yticks(range(row.num_ranks), [f"device {rank + 1}" for rank in range(row.num_ranks)])
        axes.set_ylim(row.num_ranks - 0.5, -0.5)
        axes.grid(visible=False)
    lower.set_xlim(0, row.window_s)
    lower.set_xlabel("seconds")
    theme.legend(figure, _handles(names, colours), columns=2 * len(names))
    return figure


def _handles(names: Sequence[str], colours: dict[str, str]) -> list[Patch]:
    return [
        Patch(color=_tinted(colours[name]) if forward else colours[name], label=f"{name} {kind}")
        for name in names
        for kind, forward in (("forward", True), ("backward", False))
    ]


def _draw_passes(axes: Axes, job: JobPasses, colour: str, window_s: float) -> None:
    for one in job.passes:
        start_s, end_s = max(0.0, one.start_s), min(one.end_s, window_s)
        if start_s < end_s:
            axes.broken_barh(
                [(start_s, end_s - start_s)],
                (one.rank - _FILLED / 2, _FILLED),
                facecolors=_tinted(colour) if one.is_forward else colour,
                # Hair lines between passes: a device without a bubble is still a row of passes.
                edgecolor="white",
                linewidth=0.3,
            )


def _tinted(colour: str) -> str:
    tints: list[str] = sns.light_palette(colour, n_colors=11).as_hex()
    return tints[round(10 * _FORWARD_TINT)]
