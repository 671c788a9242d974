"""How strategies changed while they trained: the costs that they were bound to, and the settings that a tuner kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from analysis import naming
from analysis.cells import fabric_key, is_measured
from analysis.stats import Interval, median_interval
from results.facts import real_size
from results.record import Adapted, Record

BOUND, TRIED, CHOSEN = "bound", "tried", "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedRow:
    """One job of one cell whose strategy adapted, over its repeats.

    `alpha_s` and `beta_s_per_byte` are what it was last bound to; `bound_at` the steps at which the first repeat was,
    from 0 with the warm-up, and `num_rebound` how often at most a repeat was bound again. `num_tried` settings a
    repeat were tried. `written_s` is the step of the first of them, which is as written, `kept_s` that of the kept
    ones, both as they were tried; `kept` are these in real sizes, with the number of repeats that kept them.
    `name` is short, `ran` what ran to the letter.
    """

    name: str
    ran: str
    where: str
    evidence: str
    num_repeats: int
    alpha_s: Interval | None = None
    beta_s_per_byte: Interval | None = None
    bound_at: tuple[int, ...] = ()
    num_rebound: int = 0
    num_tried: int = 0
    written_s: Interval | None = None
    kept_s: Interval | None = None
    kept: tuple[tuple[str, int], ...] = ()

    @property
    def bound_text(self) -> str:
        """`step 3, 23`; empty where it needs no costs."""
        return f"step {', '.join(map(str, self.bound_at))}" if self.bound_at else ""

    @property
    def kept_texts(self) -> tuple[str, ...]:
        """Each of the kept settings; with the number of repeats where these differ."""
        return tuple(text if len(self.kept) == 1 else f"{text} ({count}×)" for text, count in self.kept)


def adapted_rows(cells: Iterable[Sequence[Record]]) -> tuple[AdaptedRow, ...]:
    """A row for each job that was bound or tuned, by cell; names are short among these."""
    found: list[tuple[naming.Method, AdaptedRow]] = []
    for records in cells:
        measured = [record for record in records if is_measured(record)]
        for place in range(len(measured[0].jobs) if measured else 0):
            if any(record.jobs[place].adaptation for record in measured):
                own = naming.method_of(measured[0].jobs[place]).in_real_sizes(measured[0].fabric.size_scale)
                found.append((own, _row(measured, place)))
    names = naming.short_names(method for method, _ in found)
    return tuple(replace(row, name=names[str(method)]) for method, row in found)


def _row(records: Sequence[Record], place: int) -> AdaptedRow:
    first, scale = records[0], records[0].fabric.size_scale
    method = naming.method_of(first.jobs[place])
    reports = [record.jobs[place].adaptation for record in records]
    bindings = [_all(report, BOUND) for report in reports]
    tried, chosen = [_all(report, TRIED) for report in reports], [_all(report, CHOSEN) for report in reports]
    last = [own[-1].values for own in bindings if own]
    kept = [_settings(own[-1], method, scale) for own in chosen if own]
    return AdaptedRow(
        name=str(method),
        ran=str(method),
        where=f"{first.jobs[place].workload} · {fabric_key(first.fabric).describe()}",
        evidence=first.fabric.label,
        num_repeats=len(records),
        alpha_s=_interval([values.get("alpha_s") for values in last]),
        beta_s_per_byte=_interval([values.get("beta_s_per_byte") for values in last]),
        bound_at=tuple(one.step for one in bindings[0]),
        num_rebound=max(max(0, len(own) - 1) for own in bindings),
        num_tried=int(median(map(len, tried))),
        written_s=_interval([own[0].step_s for own in tried if own]),
        kept_s=_interval([own[-1].step_s for own in chosen if own]),
        kept=tuple((text, kept.count(text)) for text in dict.fromkeys(kept)),
    )


def _all(report: Sequence[Adapted], what: str) -> list[Adapted]:
    return [one for one in report if one.what == what]


def _interval(values: Iterable[float | None]) -> Interval | None:
    known = [value for value in values if value is not None]
    return median_interval(known) if known else None


def _settings(chosen: Adapted, method: naming.Method, size_scale: int) -> str:
    """`slice=2.06 M, credit=16.4 MB`: knobs by their own names, sizes as what they stand for."""
    worded = []
    for knob, value in chosen.values.items():
        slot, _, name = knob.rpartition(".")
        worded.append(
            naming.worded(name, real_size(value, size_scale) if _is_size(method, slot, name) else f"{value:.10g}")
        )
    return ", ".join(worded)


def _is_size(method: naming.Method, slot: str, name: str) -> bool:
    plugin = method.of_slot(slot)
    return plugin is not None and any(own.name == name and own.unit is not None for own in plugin.parameters)
