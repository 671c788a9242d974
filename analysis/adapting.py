"""How strategies changed while they trained: the costs that they were bound to, and the settings that a tuner kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from analysis import naming
from analysis.cells import fabric_key, is_measured, label_of
from analysis.stats import Interval, bootstrap_interval
from results.record import Adapted, Record
from results.sizes import in_real_sizes

BOUND, TRIED, CHOSEN = "bound", "tried", "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedRow:
    """One job of one cell whose strategy adapted, over its repeats.

    `alpha_s` and `beta_s_per_byte` are what it was last bound to; `bound_at` the steps at which the first repeat was,
    from 0 with the warm-up, and `num_rebound` how often at most a repeat was bound again. `num_tried` settings a
    repeat were tried. `written_s` is the step of the first of them, which is as written, `kept_s` that of the kept
    ones, both as they were tried; `kept` are these in real sizes, with the number of repeats that kept them.
    """

    name: str
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


def adapted_rows(cells: Iterable[Sequence[Record]], rng: np.random.Generator) -> tuple[AdaptedRow, ...]:
    """A row for each job that was bound or tuned, by cell; names are short among these."""
    rows = []
    for records in cells:
        measured = [record for record in records if is_measured(record)]
        for place in range(len(measured[0].jobs) if measured else 0):
            if any(record.jobs[place].adaptation for record in measured):
                rows.append(_row(measured, place, rng))
    names = naming.short_names(row.name for row in rows)
    return tuple(replace(row, name=names[row.name]) for row in rows)


def _row(records: Sequence[Record], place: int, rng: np.random.Generator) -> AdaptedRow:
    first, scale = records[0], records[0].fabric.size_scale
    reports = [record.jobs[place].adaptation for record in records]
    bindings = [_all(report, BOUND) for report in reports]
    tried, chosen = [_all(report, TRIED) for report in reports], [_all(report, CHOSEN) for report in reports]
    last = [own[-1].values for own in bindings if own]
    kept = [_settings(own[-1], scale) for own in chosen if own]
    return AdaptedRow(
        name=in_real_sizes(label_of(first.jobs[place]), scale),
        where=f"{first.jobs[place].workload} · {fabric_key(first.fabric).describe()}",
        evidence=first.fabric.label,
        num_repeats=len(records),
        alpha_s=_interval([values.get("alpha_s") for values in last], rng),
        beta_s_per_byte=_interval([values.get("beta_s_per_byte") for values in last], rng),
        bound_at=tuple(one.step for one in bindings[0]),
        num_rebound=max(max(0, len(own) - 1) for own in bindings),
        num_tried=int(median(map(len, tried))),
        written_s=_interval([own[0].step_s for own in tried if own], rng),
        kept_s=_interval([own[-1].step_s for own in chosen if own], rng),
        kept=tuple((text, kept.count(text)) for text in dict.fromkeys(kept)),
    )


def _all(report: Sequence[Adapted], what: str) -> list[Adapted]:
    return [one for one in report if one.what == what]


def _interval(values: Iterable[float | None], rng: np.random.Generator) -> Interval | None:
    known = [value for value in values if value is not None]
    return bootstrap_interval(known, rng) if known else None


def _settings(chosen: Adapted, size_scale: int) -> str:
    """`slice=2.06 M, credit=16.4 MB`: knobs by their own names, sizes as what they stand for."""
    worded = []
    for knob, value in chosen.values.items():
        name, _, text = in_real_sizes(f"{knob.rpartition('.')[2]}={value:.10g}", size_scale).partition("=")
        worded.append(naming.worded(name, text))
    return ", ".join(worded)
