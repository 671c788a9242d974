"""Figures of speed and convergence. Imported only when something is drawn, since matplotlib and seaborn load slowly."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.typing import LineStyleType

from analysis import theme
from analysis.rows import CellRow, CurveRow, SettingRow
from analysis.stats import Interval
from analysis.wording import number, plural

MARKERS = "osD^vPX<>"
SETTINGS_ACROSS = 5  # an overview: as many columns as can be read in half a page
SAME_STEP = 1e-9  # of a step: what additions of one time in another order differ by


def overview(settings: Sequence[SettingRow]) -> Figure | None:
    """Speed-up of every system in every setting at a glance. None below two settings or systems."""
    names = list(dict.fromkeys(row.name for setting in settings for row in setting.competitors))
    if len(settings) < 2 or len(names) < 2:
        return None
    ratios = [[_speedup(setting, name) for setting in settings] for name in names]
    order = sorted(range(len(names)), key=lambda place: -_middle(ratios[place]))
    values = np.array([ratios[place] for place in order])
    figure, axes = theme.canvas(0.95 + 0.25 * len(names), width_in=1.7 + 0.95 * len(settings))
    sns.heatmap(
        np.log2(values), ax=axes, cmap="vlag_r", vmin=-1.5, vmax=1.5, cbar=False, linewidths=1, linecolor="none",
        annot=np.vectorize(_times)(values), fmt="", annot_kws={"fontsize": 7},
        yticklabels=theme.with_room(axes, [names[place] for place in order]),
        xticklabels=[_column(setting) for setting in settings],
    )  # fmt: skip
    axes.grid(visible=False)
    axes.tick_params(axis="x", rotation=0)
    axes.tick_params(axis="y", rotation=0)
    baselines = list(dict.fromkeys(s.baseline_name for s in settings))
    over = " or ".join(baselines) if len(baselines) <= 2 else "each setting's baseline, which has 1.00×"
    theme.label(axes, f"Speed-up over {over}", "")
    return figure


def _middle(ratios: Sequence[float]) -> float:
    """The median of those that are known; systems of which none is come last."""
    return statistics.median([ratio for ratio in ratios if not math.isnan(ratio)] or [-math.inf])


def _column(setting: SettingRow) -> str:
    key, workers = setting.key, plural(setting.num_workers, "worker")
    lines = (key.workload, workers, key.fabric.stands_for, key.cell_group, f"({setting.evidence})")
    return "\n".join(filter(None, lines))


def _speedup(setting: SettingRow, name: str) -> float:
    row = next((row for row in setting.competitors if row.name == name), None)
    return row.speedup.median if row is not None and row.speedup is not None else float("nan")


def _times(value: float) -> str:
    return "" if np.isnan(value) else f"{number(value)}×"


def throughput(setting: SettingRow, palette: Mapping[str, str]) -> Figure | None:
    """Bars of median samples/s with intervals and a dot a repeat, the speed-up beside, the ideal as a line. None of one
    system with nothing beside it: the table says as much."""
    rows = setting.competitors
    if len(rows) == 1 and setting.ideal is None:
        return None
    figure, axes = theme.bars(len(rows), extra_in=0.13)
    places = list(range(len(rows)))
    sns.barplot(
        x=[row.samples_per_s.median for row in rows], y=places, hue=places, orient="h", width=0.6, saturation=1,
        palette=[palette[row.label] for row in rows], errorbar=None, linewidth=0, legend=False, ax=axes,
    )  # fmt: skip
    repeats = [(value, place) for place, row in enumerate(rows) for value in row.repeat_samples_per_s]
    sns.stripplot(
        x=[value for value, _ in repeats], y=[place for _, place in repeats], orient="h", color=theme.INK, size=2.2,
        alpha=0.7, jitter=False, ax=axes, zorder=3,
    )  # fmt: skip
    for place, row in enumerate(rows):
        theme.whisker(axes, place, row.samples_per_s)
        _ratio_text(axes, place, row)
    # Dots too: of many repeats some lie far beyond the interval, where the speed-up stands.
    furthest = max([*(_upper(row.samples_per_s) for row in setting.cells), *(value for value, _ in repeats)])
    axes.set_xlim(0, furthest * 1.28)
    handles: list[Patch | Line2D] = [Line2D([], [], **_dot(), label="one repeat")]
    if setting.ideal is not None:
        handles.append(theme.ideal_line(axes, setting.ideal.samples_per_s.median))
    theme.legend(figure, handles, columns=2)
    theme.names(axes, [row.name for row in rows])
    theme.label(
        axes,
        setting.title,
        f"samples/s of {plural(setting.num_workers, 'worker')} ({setting.evidence}, {theme.repeats(rows)})",
    )
    return figure


def step_times(setting: SettingRow, palette: Mapping[str, str]) -> Figure | None:
    """How the step times of each system spread: letter-value boxes, which show tails that a box plot hides. None where
    every step takes what the next one takes, as by a virtual clock."""
    rows = setting.competitors
    if all(np.ptp(row.steps_s) <= SAME_STEP * max(row.steps_s) for row in rows):
        return None
    figure, axes = theme.bars(len(rows), extra_in=0.13 if setting.ideal else 0.0)
    steps = [(step * 1e3, place) for place, row in enumerate(rows) for step in row.steps_s]
    sns.boxenplot(
        x=[ms for ms, _ in steps], y=[place for _, place in steps], hue=[place for _, place in steps],
        palette=[palette[row.label] for row in rows], orient="h", width=0.7, saturation=1, linewidth=0.4,
        linecolor=theme.INK, flier_kws={"s": 2, "linewidth": 0.4}, line_kws={"linewidth": 1.2}, legend=False, ax=axes,
    )  # fmt: skip
    if setting.ideal is not None:
        theme.legend(figure, [theme.ideal_line(axes, setting.ideal.step_p50_s.median * 1e3)], columns=1)
    theme.names(axes, [row.name for row in rows])
    last_ms = 1.3e3 * max(float(np.quantile(row.steps_s, 0.95)) for row in rows)
    axes.set_xlim(0, last_ms)
    for place, row in enumerate(rows):
        _beyond_text(axes, place, sum(step * 1e3 > last_ms for step in row.steps_s))
    theme.label(axes, setting.title, f"ms per step, slowest rank ({setting.evidence}, {theme.repeats(rows)})")
    return figure


def losses(setting: SettingRow, palette: Mapping[str, str]) -> Figure | None:
    """Training loss against training time, the target as a line. None where nothing was recorded."""
    shown = [(row, row.training, row.training.loss, row.training.loss_low, row.training.loss_high)
             for row in setting.cells if row.training]  # fmt: skip
    return _curves(setting, palette, shown, "training loss", target=setting.target_loss)


def accuracies(setting: SettingRow, palette: Mapping[str, str]) -> Figure | None:
    """Held-out accuracy against training time. None where nothing was recorded."""
    shown = [(row, row.held_out, row.held_out.accuracy, row.held_out.accuracy_low, row.held_out.accuracy_high)
             for row in setting.cells if row.held_out and row.held_out.accuracy]  # fmt: skip
    return _curves(setting, palette, shown, "held-out accuracy", target=None)


Line = tuple[CellRow, CurveRow, Sequence[float], Sequence[float], Sequence[float]]


def _curves(
    setting: SettingRow, palette: Mapping[str, str], shown: Sequence[Line], y_label: str, *, target: float | None
) -> Figure | None:
    if not shown:
        return None
    labels = [theme.folded(row.name) for row, *_ in shown]
    figure, axes = theme.canvas(2.5 + theme.legend_in(labels, columns=2))
    handles: list[Patch | Line2D] = []
    for place, (row, curve, middle, low, high) in enumerate(shown):
        colour, marker = palette.get(row.label, theme.INK), MARKERS[place % len(MARKERS)]
        drawn: dict[str, Any] = {"color": colour, "linestyle": _dash(row), "marker": marker, "markersize": 3}
        axes.plot(curve.time_s, middle, markevery=max(1, len(middle) // 5), **drawn)
        if row.num_repeats > 1:
            axes.fill_between(curve.time_s, low, high, color=colour, alpha=0.15, linewidth=0)
        handles.append(Line2D([], [], label=labels[place], **drawn))
    if target is not None:
        axes.axhline(target, color=theme.INK, linestyle=":", linewidth=0.8)
        _mark(axes, f"target {number(target)}", target)
    theme.legend(figure, handles, columns=2)
    rows = [row for row, *_ in shown]
    theme.label(axes, setting.title, f"training time in s ({setting.evidence}, {theme.repeats(rows)})")
    axes.set_ylabel(y_label)
    axes.set_xlim(left=0)
    return figure


def _mark(axes: Axes, text: str, y: float) -> None:
    axes.annotate(
        text, (1, y), (0, 2), textcoords="offset points", xycoords=("axes fraction", "data"), ha="right", va="bottom",
        fontsize=6.5,
    )  # fmt: skip


def _dot() -> dict[str, Any]:
    return {"marker": "o", "markersize": 2.2, "color": theme.INK, "alpha": 0.7, "linestyle": "none"}


def _dash(row: CellRow) -> LineStyleType:
    return "-" if row.system == "ours" else "--" if not row.is_ideal else ":"


def _ratio_text(axes: Axes, place: float, row: CellRow) -> None:
    """The speed-up at the right edge, where neither a whisker nor the ideal line can cover it."""
    if row.speedup is not None:
        text = f"{number(row.speedup.median)}×"
        axes.annotate(text, (1, place), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=6.5)


def _beyond_text(axes: Axes, place: float, count: int) -> None:
    """How many steps lie beyond the right edge, so that a few of them do not squeeze all others."""
    if count:
        axes.annotate(
            f"+{count} ▸", (1, place), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=6.5,
            bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 0.6},  # a whisker may end there
        )  # fmt: skip


def _upper(value: Interval) -> float:
    return value.high if value.has_bounds else value.median
