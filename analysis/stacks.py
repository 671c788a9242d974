"""Figures of what a step is made of, time and bytes, and of the gain from sharing. Imported only when drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import theme
from analysis.rows import PairRow, SettingRow, SharingRow
from analysis.sharing.rows import CROSSOVER, PHASE
from analysis.steps.wire_bytes import CONTROL, FRAMING, GRADIENT, PROBE
from results.record import Phases

SMALLEST_SHARE = 0.005  # of a step, or of its bytes; a narrower part cannot be seen


class TimePart(StrEnum):
    """What a step's time goes into, as legends name it."""

    COMPUTE = "compute"
    EXPOSED = "exposed communication"
    TURN_WAIT = "turn wait"
    REST = "rest of the step"
    UNSEEN = "not told apart"


def breakdown(setting: SettingRow) -> Figure | None:
    """Where a step's time goes, the step without communication as a line. None where no system shows its phases."""
    rows = setting.competitors
    ideal = setting.ideal
    bars = [(row.name, row.phases, row.step_time_s.median) for row in rows]
    x_label = f"ms per step ({setting.evidence}, {theme.repeats(rows)})"
    return _phase_bars(bars, setting.title, x_label, ideal.step_time_s.median if ideal else None)


def shared_breakdown(pair: PairRow) -> Figure | None:
    """Where each job's step goes under each sharing policy; start offsets of one policy have a figure of their own."""
    rows = [row for row in pair.rows if row.axis != PHASE]
    if not rows:
        return None
    bars = [(f"{row.label}: {job.name}", job.phases, job.step_time_s.median) for row in rows for job in row.jobs]
    title = pair.title.removeprefix(f"{pair.group}: ")
    repeats = theme.repeats_of([job.step_time_s.n for row in rows for job in row.jobs])
    return _phase_bars(bars, title, f"ms per step ({pair.evidence}, {repeats})", None)


def sent_bytes(setting: SettingRow) -> Figure | None:
    """Bytes a step: the engine's count by tag, and the host's interface counter as a mark beside it."""
    rows = setting.competitors
    if all(row.sent_bytes is None for row in rows):
        return None
    colours = _tag_colours({tag for row in rows for tag in row.wire_bytes})
    tags = [tag for tag in colours if any(_is_seen(row.wire_bytes, tag) for row in rows)]
    figure, axes = theme.bars(len(rows), extra_in=0.13 * (len(tags) // 2 + 1))
    _stack(axes, [[(row.wire_bytes.get(tag, 0.0) / 1e6, {"color": colours[tag]}) for tag in tags] for row in rows])
    for place, row in enumerate(rows):
        if row.interface_bytes is not None:
            axes.plot(row.interface_bytes / 1e6, place, **theme.diamond())
    handles: list[Patch | Line2D] = [Patch(color=colours[tag], label=f"{tag}, by the engine") for tag in tags]
    if any(row.interface_bytes is not None for row in rows):
        handles.append(Line2D([], [], **theme.diamond(), label="interface, with headers"))
    theme.legend(figure, handles, columns=2)
    theme.names(axes, [row.name for row in rows])
    axes.set_xlim(left=0)
    theme.label(axes, setting.title, f"MB sent per step and host ({setting.evidence}, {theme.repeats(rows)})")
    return figure


def _tag_colours(tags: Set[str]) -> dict[str, str]:
    """A colour for each tag that occurs, the engine's own the same in every figure, in the order in which bars stack
    them."""
    own, palette = (GRADIENT, FRAMING, PROBE, CONTROL), theme.palette()
    every = list(enumerate([*own, *sorted(tags - {*own})]))
    return {tag: palette[place % len(palette)] for place, tag in reversed(every) if tag in tags}


def _is_seen(wire_bytes: Mapping[str, float], tag: str) -> bool:
    return wire_bytes.get(tag, 0.0) > SMALLEST_SHARE * sum(wire_bytes.values())


def sharing(pairs: Sequence[PairRow]) -> Figure | None:
    """Gain over running one after the other, beside the predicted gain, for every pair of one fabric."""
    shown = [(pair.names, [row for row in pair.rows if row.throughput and not row.is_reference]) for pair in pairs]
    rows = [row for _, group in shown for row in group]
    if not rows:
        return None
    figure, axes = theme.bars(len(rows) + len(shown), extra_in=0.2)
    ticks: list[tuple[int, str]] = []
    place = -1
    for names, group in shown:
        place += 1
        theme.heading(axes, place, names)
        for row in group:
            place += 1
            _gain(axes, place, row)
            ticks.append((place, row.label))
        theme.one_by_one(axes, place - len(group), place)
    axes.set_yticks([position for position, _ in ticks], [theme.folded(name) for _, name in ticks])
    axes.set_ylim(place + 0.6, -0.6)
    theme.legend(figure, _gain_handles(rows), columns=2)
    repeats = theme.repeats_of([row.throughput.n for row in rows if row.throughput])
    x_label = f"gain, exclusive = 1 ({pairs[0].evidence}, {repeats})"
    theme.label(axes, f"Gain of sharing · {pairs[0].where}", x_label)
    return figure


def _gain(axes: Axes, place: float, row: SharingRow) -> None:
    assert row.throughput is not None
    colour = theme.palette()[2] if row.policy == CROSSOVER else theme.neutral()
    axes.barh(place, row.throughput.median, height=0.6, color=colour)
    if row.bound is not None:  # before the interval, whose ends it would hide
        axes.plot([row.bound.median] * 2, [place - 0.42, place + 0.42], color=theme.palette()[3], linewidth=2)
    theme.whisker(axes, place, row.throughput)
    if row.makespan_ratio is not None:
        axes.plot(row.makespan_ratio.median, place + 0.16, **theme.diamond())


def _gain_handles(rows: Sequence[SharingRow]) -> list[Patch | Line2D]:
    """Entries for what these rows drew, and no other."""
    drawn: list[tuple[bool, Patch | Line2D]] = [
        (any(row.policy == CROSSOVER for row in rows), Patch(color=theme.palette()[2], label="throughput, crossover")),
        (any(row.policy != CROSSOVER for row in rows), Patch(color=theme.neutral(), label="throughput, other")),
        (any(row.makespan_ratio for row in rows), Line2D([], [], **theme.diamond(), label="makespan ratio")),
        (
            any(row.bound for row in rows),
            Line2D([], [], color=theme.palette()[3], linewidth=2, label="predicted gain Σt/T*"),
        ),
    ]
    return [handle for is_drawn, handle in drawn if is_drawn]


def _phase_bars(
    bars: Sequence[tuple[str, Phases, float]], title: str, x_label: str, ideal_s: float | None
) -> Figure | None:
    if all(phases.compute_s is None and phases.exposed_s is None for _, phases, _ in bars):
        return None
    parts = [phase_parts(phases, step_s) for _, phases, step_s in bars]
    looks = _phase_looks()
    seen = [name for name in looks if any(part[name] > SMALLEST_SHARE * sum(part.values()) for part in parts)]
    figure, axes = theme.bars(len(bars), extra_in=0.13 * ((len(seen) + 2) // 2))
    _stack(axes, [[(part[name] * 1e3, looks[name]) for name in seen] for part in parts])
    handles: list[Patch | Line2D] = [Patch(label=name.value, **looks[name]) for name in seen]
    if ideal_s is not None:
        handles.append(theme.ideal_line(axes, ideal_s * 1e3))
    theme.legend(figure, handles, columns=2)
    theme.names(axes, [name for name, _, _ in bars])
    axes.set_xlim(left=0)
    theme.label(axes, title, x_label)
    return figure


def _phase_looks() -> dict[TimePart, dict[str, Any]]:
    blue, orange, _, _, violet, *_ = theme.palette()
    return {
        TimePart.COMPUTE: {"color": blue},
        TimePart.EXPOSED: {"color": orange},
        TimePart.TURN_WAIT: {"color": violet},
        TimePart.REST: {"color": theme.neutral()},
        TimePart.UNSEEN: {"facecolor": "none", "edgecolor": theme.neutral(), "hatch": "////", "linewidth": 0.4},
    }


def phase_parts(phases: Phases, step_s: float) -> dict[TimePart, float]:
    """A step's parts in seconds, which make up the whole step: `REST` is what no phase accounts for.

    Where a system shows no compute, all but the waiting for turns is one part that cannot be told apart.
    """
    known = {
        TimePart.COMPUTE: phases.compute_s or 0.0,
        TimePart.EXPOSED: phases.exposed_s or 0.0,
        TimePart.TURN_WAIT: phases.turn_wait_s or 0.0,
    }
    remaining = max(0.0, step_s - sum(known.values()))
    hidden = phases.compute_s is None
    return known | {TimePart.REST: 0.0 if hidden else remaining, TimePart.UNSEEN: remaining if hidden else 0.0}


def _stack(axes: Axes, bars: Sequence[Sequence[tuple[float, dict[str, Any]]]]) -> None:
    """Horizontal stacked bars of widths with their looks, the first bar on top."""
    for place, parts in enumerate(bars):
        left = 0.0
        for width, drawn in parts:
            axes.barh(place, width, left=left, height=0.6, **{"linewidth": 0} | drawn)
            left += width
