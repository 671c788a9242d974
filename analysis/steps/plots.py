"""Figures of step times: curves over the link's rate and the number of workers, where methods pay, predictions beside
measurements. Imported only when something is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedFormatter, FixedLocator, LogLocator, NullFormatter, NullLocator, PercentFormatter

from analysis import theme
from analysis.plots import MARKERS
from analysis.steps.rows import ErrorRow, StepRow, StudyRow
from analysis.wording import number, percent, plural

FULL_WIDTH_IN = 7.0
MOST_COLUMNS = 3
MOST_RATES = 4
FEWEST_VALUES = 2
FEWEST_WORLDS = 4
BAND = 0.08
DASHES = ("-", "--", "-.", ":")  # as many as have no factor in common with the palette
Value = Callable[[StepRow], float | None]
Looks = Mapping[str, dict[str, Any]]


def looks(methods: Sequence[str]) -> Looks:
    """A colour, a marker and a dash for each method: no two of twenty-eight agree in colour and dash."""
    palette = theme.palette()
    return {
        method: {
            "color": palette[place % len(palette)],
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": DASHES[place % len(DASHES)],
        }
        for place, method in enumerate(methods)
    }


def over_rate(study: StudyRow, rows: Sequence[StepRow]) -> Figure | None:
    """Step time above and, where one worker alone was measured, scaling efficiency below over the link's rate, a
    column a number of workers.

    Lines are predicted, points measured. None where nothing has two rates.
    """
    columns = [workers for workers in _values(rows, _workers) if _num_rates(rows, workers) >= FEWEST_VALUES]
    columns = _spread(_preferred(columns, rows), MOST_COLUMNS)
    if not columns:
        return None
    drawn = [row for row in rows if row.place.num_workers in columns and row.place.gbit is not None]
    styles = looks(_methods(drawn, study.reference))
    panels = (_STEP, _EFFICIENCY) if any(row.single_s is not None for row in rows) else (_STEP,)
    height_in = 3.9 if len(panels) > 1 else 2.3
    figure, axes = _grid(len(panels), len(columns), height_in=height_in, legend_rows=_legend_rows(rows, styles))
    for place, workers in enumerate(columns):
        here = [row for row in drawn if row.place.num_workers == workers]
        for part, panel in zip(axes[:, place], panels, strict=True):
            _curves(part, here, styles, _gbit, panel)
            _log_ticks(part, _values(here, _gbit))
        axes[0, place].set_title(f"{workers} workers")
        axes[0, place].set_yscale("log")
    _finish(figure, axes, panels, study, rows, styles, "Gbit/s")
    return figure


def over_workers(study: StudyRow, rows: Sequence[StepRow]) -> Figure | None:
    """Scaling efficiency over the number of workers, a column a rate. None where no rate has four numbers of them."""
    rates = [gbit for gbit in _values(rows, _gbit) if _num_worlds(rows, gbit) >= FEWEST_WORLDS]
    rates = rates[-MOST_RATES:]
    if not rates:
        return None
    drawn = [row for row in rows if row.place.gbit in rates]
    styles = looks(_methods(drawn, study.reference))
    figure, axes = _grid(1, len(rates), height_in=2.3, legend_rows=_legend_rows(rows, styles))
    for place, gbit in enumerate(rates):
        here = [row for row in drawn if row.place.gbit == gbit]
        _curves(axes[0, place], here, styles, _workers, _EFFICIENCY)
        _log_ticks(axes[0, place], _values(here, _workers), fewest=8)
        axes[0, place].set_title(f"{gbit:g} Gbit/s")
    _finish(figure, axes, (_EFFICIENCY,), study, rows, styles, "workers")
    return figure


def where_it_pays(studies: Sequence[StudyRow]) -> Figure | None:
    """For each method, network and number of workers the rates at which it beats the reference. None without any."""
    cells = {
        (pays.name, (study.workload, pays.column)): pays
        for study in studies
        for pays in study.pays
        if pays.num_workers in _measured_or_first(study)
    }
    if not cells:
        return None
    names, columns = list(dict.fromkeys(name for name, _ in cells)), list(dict.fromkeys(column for _, column in cells))
    shares, texts = np.full((len(names), len(columns)), np.nan), np.full((len(names), len(columns)), "", dtype=object)
    for (name, column), pays in cells.items():
        spot = names.index(name), columns.index(column)
        shares[spot], texts[spot] = _share(pays.ranges, pays.rates), pays.text.replace(", ", "\n")
    figure, axes = theme.canvas(1.0 + 0.27 * len(names), width_in=1.9 + 0.68 * len(columns))
    sns.heatmap(
        shares, ax=axes, cmap="crest", vmin=0, vmax=1, cbar=False, linewidths=1, linecolor="none", annot=texts, fmt="",
        annot_kws={"fontsize": 6.5}, yticklabels=theme.with_room(axes, names),
        xticklabels=[f"{workload.removesuffix('-replay')}\n{' '.join(who)}\n{on}" for workload, (*who, on) in columns],
    )  # fmt: skip
    axes.grid(visible=False)
    axes.tick_params(axis="x", rotation=0, labelsize=6.5)
    axes.tick_params(axis="y", rotation=0)
    theme.label(axes, "Gbit/s at which a method beats the reference", "")
    return figure


def predicted_against_measured(rows: Sequence[StepRow], errors: Sequence[ErrorRow]) -> Figure | None:
    """Every cell with both; below, the relative error. None without any."""
    known = [row for row in rows if row.error is not None and row.step_time_s is not None]
    if not known:
        return None
    figure, upper, lower = theme.panels(4.2, below=0.45)
    handles: list[Patch | Line2D] = []
    for place, workers in enumerate(_values(known, _workers)):
        here = [row for row in known if row.place.num_workers == workers]
        style: dict[str, Any] = {
            "color": theme.palette()[place % len(theme.palette())],
            "linestyle": "none",
        }
        style |= {"marker": MARKERS[place % len(MARKERS)], "markersize": 3.4, "alpha": 0.85}
        measured_ms = [_median_ms(row) for row in here]
        upper.plot(measured_ms, [1e3 * (row.predicted_s or 0.0) for row in here], **style)
        lower.plot(measured_ms, [100 * (row.error or 0.0) for row in here], **style)
        handles.append(Line2D([], [], label=f"{workers} workers", **style))
    shown = [*map(_median_ms, known), *(1e3 * (row.predicted_s or 0.0) for row in known if row.predicted_s)]
    low, high = min(shown) * 0.85, max(shown) * 1.18
    ends = np.array([low, high])
    upper.plot(ends, ends, color=theme.INK, linewidth=0.8, zorder=0.5)
    upper.fill_between(ends, ends * (1 - BAND), ends * (1 + BAND), color=theme.neutral(), alpha=0.18, linewidth=0)
    lower.axhspan(-100 * BAND, 100 * BAND, color=theme.neutral(), alpha=0.18, linewidth=0)
    lower.axhline(0, color=theme.INK, linewidth=0.8, zorder=0.5)
    upper.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (upper.yaxis, upper.xaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_locator(NullLocator())
    theme.legend(figure, handles, columns=4)
    theme.label(upper, _error_title(errors), "")
    upper.set_ylabel("predicted step, ms")
    lower.set_ylabel("error, %")
    lower.set_xlabel(f"measured step, ms ({theme.repeats_of([row.num_repeats for row in known])})", loc="right")
    return figure


def _error_title(errors: Sequence[ErrorRow]) -> str:
    every = errors[0]
    order = "" if every.tau is None else f", τ {number(every.tau.median)} ({plural(every.num_pairs, 'pair')})"
    cells = plural(every.num_cells, "cell")
    return f"{cells}: error {percent(every.median.median)} in the median, {percent(every.p95.median)} at p95{order}"


def _median_ms(row: StepRow) -> float:
    assert row.step_time_s is not None
    return 1e3 * row.step_time_s.median


def _grid(num_rows: int, num_columns: int, *, height_in: float, legend_rows: int) -> tuple[Figure, Any]:
    width_in = max(theme.WIDTH_IN, FULL_WIDTH_IN * min(1.0, num_columns / MOST_COLUMNS))
    figure = Figure(figsize=(width_in, height_in + 0.14 * legend_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(num_rows, num_columns, sharex="col", sharey="row", squeeze=False)
    return figure, axes


def _labels(rows: Sequence[StepRow], styles: Looks) -> list[str]:
    """What the legend calls each method, in lines short enough for two columns."""
    names = {row.method: row.name for row in rows}
    return [theme.folded(names[method]) for method in styles]


def _legend_rows(rows: Sequence[StepRow], styles: Looks) -> int:
    num_lines = sum(1 + label.count("\n") for label in _labels(rows, styles))
    return 1 + (num_lines + 2) // 2


class _Panel(NamedTuple):
    """What a row of axes shows: predicted, measured, and how its first axes are dressed."""

    predicted: Value
    measured: Callable[[StepRow], Any]
    dress: Callable[[Axes], None]


def _dress_step(axes: Axes) -> None:
    axes.set_ylabel("ms per step")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _dress_efficiency(axes: Axes) -> None:
    axes.set_ylabel("scaling efficiency")
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.set_ylim(bottom=0)


_STEP = _Panel(
    lambda row: None if row.predicted_s is None else 1e3 * row.predicted_s,
    lambda row: None if row.step_time_s is None else row.step_time_s.times(1e3),
    _dress_step,
)
_EFFICIENCY = _Panel(
    lambda row: None if row.predicted_efficiency is None else 100 * row.predicted_efficiency,
    lambda row: None if row.efficiency is None else row.efficiency.times(100),
    _dress_efficiency,
)


def _curves(axes: Axes, rows: Sequence[StepRow], styles: Looks, x: Value, panel: _Panel) -> None:
    """Predictions as lines, measurements as points with intervals; a line through points without a prediction."""
    for method, style in styles.items():
        own = sorted((row for row in rows if row.method == method), key=lambda row: x(row) or 0.0)
        line = [(at, value) for row in own if (at := x(row)) and (value := panel.predicted(row)) is not None]
        points = [(at, value) for row in own if (at := x(row)) and (value := panel.measured(row)) is not None]
        if line:
            axes.plot(
                [at for at, _ in line], [value for _, value in line],
                **{key: style[key] for key in ("color", "linestyle")}, linewidth=1.1, alpha=0.9,
            )  # fmt: skip
        if points:
            joined = {} if not line and len(points) > 1 else {"linestyle": "none"}
            theme.error_bars(
                axes, [at for at, _ in points], [value for _, value in points], **(style | joined), markersize=3.6
            )


def _finish(
    figure: Figure,
    axes: Any,
    panels: Sequence[_Panel],
    study: StudyRow,
    rows: Sequence[StepRow],
    styles: Looks,
    x_label: str,
) -> None:
    """Names of the axes, the legend under them, and the title over all."""
    for row_of_axes, panel in zip(axes, panels, strict=True):
        panel.dress(row_of_axes[0])
    for part in axes[-1]:
        part.set_xlabel(x_label, loc="right")
    handles: list[Patch | Line2D] = [
        Line2D([], [], label=label, markersize=3.6, **style)
        for label, style in zip(_labels(rows, styles), styles.values(), strict=True)
    ]
    theme.legend(figure, handles, columns=2 if len(axes[0]) < MOST_COLUMNS else MOST_COLUMNS)
    title = f"{study.title} ({_evidence(rows)})"
    columns = round(theme.LONGEST_TITLE * figure.get_figwidth() / theme.WIDTH_IN)
    figure.suptitle(textwrap.fill(title, columns), x=0.01, ha="left", fontsize=8)


def _evidence(rows: Sequence[StepRow]) -> str:
    measured = [row for row in rows if row.step_time_s is not None]
    kinds = sorted({row.evidence for row in measured})
    points = (
        f"points: {', '.join(kinds)}, {theme.repeats_of([row.num_repeats for row in measured])}" if measured else ""
    )
    lines = "lines: predicted" if any(row.predicted_s is not None for row in rows) else ""
    return "; ".join(filter(None, (lines, points))) or "nothing measured"


def _log_ticks(axes: Axes, values: Sequence[float], fewest: int = 0) -> None:
    """Ticks where something stands; where there are many, at every other one."""
    axes.set_xscale("log")
    shown = list(values) if len(values) < fewest or not fewest else list(values)[:: 1 + len(values) // 6]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{value:,g}" for value in shown]))
    axes.xaxis.set_minor_locator(NullLocator())


def _values(rows: Iterable[StepRow], value: Value) -> list[Any]:
    return sorted({found for row in rows if (found := value(row)) is not None})


def _workers(row: StepRow) -> int:
    return row.place.num_workers


def _gbit(row: StepRow) -> float | None:
    return row.place.gbit


def _methods(rows: Sequence[StepRow], reference: str) -> list[str]:
    """Methods with more than one place, the reference first; the rest have a figure each."""
    counts = {row.method: sum(other.method == row.method for other in rows) for row in rows}
    first = {row.method for row in rows if row.name == reference}
    return sorted((method for method, count in counts.items() if count > 1), key=lambda method: method not in first)


def _num_rates(rows: Sequence[StepRow], workers: int) -> int:
    return len(_values([row for row in rows if row.place.num_workers == workers], _gbit))


def _num_worlds(rows: Sequence[StepRow], gbit: float) -> int:
    return len(_values([row for row in rows if row.place.gbit == gbit], _workers))


def _preferred(columns: Sequence[int], rows: Sequence[StepRow]) -> list[int]:
    """Numbers of workers with a measurement, or all of the smallest where there is none."""
    measured = {row.place.num_workers for row in rows if row.step_time_s is not None}
    return sorted(column for column in columns if column <= max(measured, default=8))


def _measured_or_first(study: StudyRow) -> list[int]:
    """The numbers of workers that the table of rates shows: those of curves."""
    return _spread(_preferred(sorted({pays.num_workers for pays in study.pays}), study.rows), MOST_COLUMNS)


def _spread(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the values, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def _share(ranges: Sequence[tuple[float | None, float | None]], rates: tuple[float, float]) -> float:
    """The part of the rates, on a logarithmic scale, that the ranges hold."""
    first, last = np.log(rates[0]), np.log(rates[1])
    covered = sum(
        (last if high is None else np.log(high)) - (first if low is None else np.log(low)) for low, high in ranges
    )
    return float(covered / (last - first))
