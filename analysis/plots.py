"""How each kind of figure is drawn with matplotlib. Imported only when something is drawn, since it loads slowly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.typing import LineStyleType

from analysis import look
from analysis.rows import CellRow, PairRow, SettingRow, SharingRow
from analysis.stats import Interval
from analysis.wording import number
from results.record import Phases

PHASE_COLOURS = {
    "compute": "#0173b2",
    "exposed communication": "#de8f05",
    "turn wait": "#b35fa3",
    "rest": look.NEUTRAL,
}
MARKERS = "osD^vPX<>"


def throughput(setting: SettingRow, palette: Mapping[str, str]) -> Figure:
    """Bars of samples/s with intervals, the ratio to the baseline beside, the ideal as a line."""
    rows = setting.competitors
    figure, axes = look.bars(len(rows))
    for place, row in enumerate(rows):
        _bar(axes, place, row.samples_per_s, palette[row.label])
        _ratio_text(axes, place, row)
    ideal = setting.ideal
    top = max(_upper(row.samples_per_s) for row in setting.cells)
    axes.set_xlim(0, top * 1.28)
    if ideal is not None:
        axes.axvline(ideal.samples_per_s.median, color=look.INK, linestyle="--", linewidth=0.9)
        handle = Line2D([], [], color=look.INK, linestyle="--", linewidth=0.9, label="no communication (ideal)")
        look.legend(figure, [handle], columns=1)
    look.names(axes, [row.label for row in rows])
    look.label(axes, setting.title, f"samples/s, all {setting.num_ranks} ranks ({setting.evidence}, {_n(rows)})")
    return figure


def curves(setting: SettingRow, palette: Mapping[str, str], *, accuracy: bool) -> Figure | None:
    """Loss or accuracy against training time; the band holds every repeat. None where nothing was recorded."""
    rows = [row for row in setting.cells if row.curve and (row.curve.accuracy or not accuracy)]
    if not rows:
        return None
    figure, axes = look.canvas(2.5 + 0.13 * ((len(rows) + 1) // 2))
    for place, row in enumerate(rows):
        _curve(axes, row, palette.get(row.label, look.INK), MARKERS[place % len(MARKERS)], accuracy)
    if not accuracy and setting.target_loss is not None:
        axes.axhline(setting.target_loss, color=look.INK, linestyle=":", linewidth=0.8)
        axes.annotate(
            f"target {number(setting.target_loss)}", (1, setting.target_loss), (0, 2), textcoords="offset points",
            xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=6.5,
        )  # fmt: skip
    handles = [
        Line2D([], [], color=palette.get(row.label, look.INK), marker=MARKERS[place % len(MARKERS)], markersize=3,
               linestyle=_dash(row), label=row.label)
        for place, row in enumerate(rows)
    ]  # fmt: skip
    look.legend(figure, handles, columns=2)
    look.label(axes, setting.title, f"training time in s ({setting.evidence}, {_n(rows)})")
    axes.set_ylabel("accuracy" if accuracy else "loss")
    axes.set_xlim(left=0)
    return figure


def breakdown(setting: SettingRow) -> Figure | None:
    """Where a step's time goes, the step without communication as a line. None where no system shows its phases."""
    rows = setting.competitors
    ideal = setting.ideal
    line = ideal.step_time_s.median if ideal else None
    bars = [(row.label, row.phases, row.step_time_s.median) for row in rows]
    x_label = f"ms a step ({setting.evidence}, {_n(rows)})"
    return _phase_bars(bars, setting.title, x_label, line)


def shared_breakdown(pair: PairRow) -> Figure | None:
    """Where each job's step goes under each sharing policy."""
    bars = [(f"{row.label}: {job.name}", job.phases, job.step_time_s.median) for row in pair.rows for job in row.jobs]
    return _phase_bars(bars, pair.title, f"ms a step ({pair.evidence}, {_n(pair.rows)})", None)


def sent_bytes(setting: SettingRow) -> Figure | None:
    """Bytes a step: the engine's count by tag, and the host's interface counter as a mark beside it."""
    rows = setting.competitors
    if all(row.sent_bytes is None for row in rows):
        return None
    tags = sorted({tag for row in rows for tag in row.wire_bytes})
    figure, axes = look.bars(len(rows), extra_in=0.13 * (len(tags) // 2 + 1))
    for place, row in enumerate(rows):
        left = 0.0
        for tag in tags:
            width = row.wire_bytes.get(tag, 0.0) / 1e6
            axes.barh(place, width, left=left, height=0.6, color=look.PALETTE[tags.index(tag) % len(look.PALETTE)])
            left += width
        if row.interface_bytes is not None:
            axes.plot(row.interface_bytes / 1e6, place, "D", markersize=4, markerfacecolor="none", color=look.INK)
    handles: list[Patch | Line2D] = [
        Patch(color=look.PALETTE[place % len(look.PALETTE)], label=tag) for place, tag in enumerate(tags)
    ]
    mark = Line2D([], [], marker="D", markersize=4, markerfacecolor="none", color=look.INK, linestyle="none")
    mark.set_label("interface counter")
    look.legend(figure, [*handles, mark], columns=2)
    look.names(axes, [row.label for row in rows])
    axes.set_xlim(left=0)
    look.label(axes, setting.title, f"MB sent a step and host ({setting.evidence}, {_n(rows)})")
    return figure


def sharing(pairs: Sequence[PairRow]) -> Figure | None:
    """Gain over running one after the other, beside the predicted bound, for every pair of one fabric."""
    shown = [(pair.names, [row for row in pair.rows if row.throughput and not row.is_reference]) for pair in pairs]
    rows = [row for _, group in shown for row in group]
    if not rows:
        return None
    figure, axes = look.bars(len(rows) + len(shown), extra_in=0.2)
    ticks: list[tuple[int, str]] = []
    place = -1
    for names, group in shown:
        place += 1
        axes.annotate(names, (0, place + 0.1), (3, 0), textcoords="offset points", va="center", fontsize=6.5)
        for row in group:
            place += 1
            _gain(axes, place, row)
            ticks.append((place, row.label))
    axes.set_yticks([position for position, _ in ticks], [look.two_lines(name) for _, name in ticks])
    axes.set_ylim(place + 0.6, -0.6)
    axes.axvline(1, color=look.INK, linewidth=0.8, zorder=0.5)
    look.legend(figure, _gain_handles(), columns=2)
    x_label = f"gain, exclusive = 1 ({pairs[0].evidence}, {_n(rows)})"
    look.label(axes, f"Gain of sharing · {pairs[0].where}", x_label)
    return figure


def _gain(axes: Axes, place: float, row: SharingRow) -> None:
    assert row.throughput is not None
    _bar(axes, place, row.throughput, look.PALETTE[2] if row.policy == "crossover" else look.NEUTRAL)
    if row.makespan_ratio is not None:
        axes.plot(row.makespan_ratio.median, place + 0.16, "D", markersize=3.5, markerfacecolor="none", color=look.INK)
    if row.bound is not None:
        axes.plot([row.bound.median] * 2, [place - 0.42, place + 0.42], color=look.PALETTE[3], linewidth=2)


def _gain_handles() -> list[Patch | Line2D]:
    makespan = Line2D([], [], marker="D", markersize=3.5, markerfacecolor="none", color=look.INK, linestyle="none")
    makespan.set_label("makespan ratio")
    return [
        Patch(color=look.PALETTE[2], label="throughput, crossover"),
        Patch(color=look.NEUTRAL, label="throughput, other"),
        makespan,
        Line2D([], [], color=look.PALETTE[3], linewidth=2, label="predicted bound Σt/T*"),
    ]


def _phase_bars(
    bars: Sequence[tuple[str, Phases, float]], title: str, x_label: str, ideal_s: float | None
) -> Figure | None:
    if all(phases.compute_s is None and phases.exposed_s is None for _, phases, _ in bars):
        return None
    figure, axes = look.bars(len(bars), extra_in=0.13)
    parts = [phase_parts(phases, step_s) for _, phases, step_s in bars]
    for place, part in enumerate(parts):
        left_ms = 0.0
        for name, seconds in part:
            axes.barh(place, seconds * 1e3, left=left_ms, height=0.6, **_phase_look(name))
            left_ms += seconds * 1e3
    seen = [name for name in PHASE_COLOURS if any(seconds > 0 for part in parts for n, seconds in part if n == name)]
    handles: list[Patch | Line2D] = [Patch(label=_PHASE_NAMES.get(name, name), **_phase_look(name)) for name in seen]
    if ideal_s is not None:
        axes.axvline(ideal_s * 1e3, color=look.INK, linestyle="--", linewidth=0.9)
        handles.append(Line2D([], [], color=look.INK, linestyle="--", linewidth=0.9, label="no communication (ideal)"))
    look.legend(figure, handles, columns=2)
    look.names(axes, [name for name, _, _ in bars])
    axes.set_xlim(left=0)
    look.label(axes, title, x_label)
    return figure


_PHASE_NAMES = {"rest": "rest, or not visible"}


def _phase_look(name: str) -> dict[str, Any]:
    colour = PHASE_COLOURS[name]
    if name == "rest":
        return {"facecolor": "none", "edgecolor": colour, "hatch": "////", "linewidth": 0.4}
    return {"facecolor": colour, "edgecolor": colour, "linewidth": 0.4}


def phase_parts(phases: Phases, step_s: float) -> list[tuple[str, float]]:
    """A step's parts in seconds; what no phase accounts for is `rest`, so the parts make up the whole step."""
    known = {
        "compute": phases.compute_s or 0.0,
        "exposed communication": phases.exposed_s or 0.0,
        "turn wait": phases.turn_wait_s or 0.0,
    }
    return [*known.items(), ("rest", max(0.0, step_s - sum(known.values())))]


def _curve(axes: Axes, row: CellRow, colour: str, marker: str, accuracy: bool) -> None:
    curve = row.curve
    assert curve is not None
    middle, low, high = (
        (curve.accuracy, curve.accuracy_low, curve.accuracy_high)
        if accuracy
        else (curve.loss, curve.loss_low, curve.loss_high)
    )
    every = max(1, len(middle) // 5)
    axes.plot(curve.time_s, middle, color=colour, linestyle=_dash(row), marker=marker, markersize=3, markevery=every)
    if row.num_repeats > 1:
        axes.fill_between(curve.time_s, low, high, color=colour, alpha=0.15, linewidth=0)


def _dash(row: CellRow) -> LineStyleType:
    return "-" if row.system == "ours" else "--" if not row.is_ideal else ":"


def _bar(axes: Axes, place: float, value: Interval, colour: str) -> None:
    axes.barh(place, value.median, height=0.6, color=colour)
    if value.has_bounds:
        spread = [[max(0.0, value.median - value.low)], [max(0.0, value.high - value.median)]]
        axes.errorbar(value.median, place, xerr=spread, color=look.INK, linewidth=0.9, capsize=2, capthick=0.9)


def _ratio_text(axes: Axes, place: float, row: CellRow) -> None:
    """The speed-up at the right edge, where neither a whisker nor the ideal line can cover it."""
    if row.speedup is not None:
        text = f"{number(row.speedup.median)}×"
        axes.annotate(text, (1, place), xycoords=("axes fraction", "data"), ha="right", va="center", fontsize=6.5)


def _upper(value: Interval) -> float:
    return value.high if value.has_bounds else value.median


def _n(rows: Sequence[CellRow] | Sequence[SharingRow]) -> str:
    counts = sorted({row.num_repeats for row in rows})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]}–{counts[-1]}"
