"""Which figures of compression a summary holds, with their captions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.codes.findings import gains_of
from analysis.codes.rows import CompressionStudy, MethodRow
from analysis.rows import Drawing
from analysis.stats import Interval, median_interval
from analysis.steps.rows import Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOPIC = "compression"
FEWEST_METHODS = 3
FEWEST_RATES = 2
_COST = (
    "Left: bits that a rank sends for each parameter and step, as the engine counts them (indices, norms and sizes "
    "included; a warm-up's steps not); diamonds: the code by its paper's formula, scales apart where that leaves them "
    "out. Right: a step, and of the time in which the engine's thread compressed what came before a message left and "
    "after its answer came, other work of that thread included; it may run beside computation. {where}, {evidence}."
)
_PAYS = (
    "Green: the rates on which a step is shorter, by more than 1 %, than the better of tuned float32 and half (a half: "
    "than float32); grey: the rates that were asked about, between which crossings are interpolated; line: 95 % "
    "interval of the crossing over repeats; cross: not at the lowest of them."
)
_GAINS = (
    "The step of the better of tuned float32 and half over each method's, paired by repeat; below the line compression "
    "does not pay. Medians and 95 % intervals."
)
_SOONER = (
    "Time to the dense run's target over each method's, at the rate of training as measured, at others the steps to "
    "the target times the step measured there (a warm-up's with float32's step). Methods that did not reach it in "
    "every repeat are left out."
)


def compression_drawings(study: CompressionStudy) -> Iterator[Drawing]:
    """Bits beside time in every place, gains over rates, the rates at which methods pay, and times to the target."""
    from analysis.codes import plots as compression_plots

    for place in dict.fromkeys(row.place for row in study.rows):
        here = [row for row in study.rows if row.place == place and row.step_time_s is not None]
        if len(here) >= FEWEST_METHODS:
            caption = _COST.format(where=place.describe(), evidence=here[0].evidence_text)
            yield from _drawn(f"bits-{_named(place)}", caption, compression_plots.bits_and_time(here), here)
    for work in dict.fromkeys(row.place.without_rate for row in study.rows):
        here = [row for row in study.rows if row.place.without_rate == work and row.by_repeat]
        curves = _gain_curves(here)
        if curves:
            title = work.describe()
            figure = compression_plots.gains_over_rate(curves, title, here[0].evidence_text)
            yield from _drawn(f"gain-{_named(work)}", f"{_GAINS} {title}, {here[0].evidence_text}.", figure, here)
    for workload in dict.fromkeys(one.workload for one in study.pays):
        pays = [one for one in study.pays if one.workload == workload]
        rows = [row for row in study.rows if row.place.workload == workload]
        yield from _drawn(
            f"pays-below-{_slug(workload)}", f"{_PAYS} {workload}.", compression_plots.pays_below(pays), rows
        )
    for workload in dict.fromkeys(row.workload for row in study.sooner):
        own = [row for row in study.sooner if row.workload == workload]
        rows = [row for row in study.rows if row.place.workload == workload]
        yield from _drawn(f"sooner-{_slug(workload)}", f"{_SOONER} {workload}.", compression_plots.sooner(own), rows)


def _gain_curves(rows: Sequence[MethodRow]) -> dict[str, list[tuple[float, Interval]]]:
    """By method the rates with the gain there, of methods that were measured at several."""
    curves: dict[str, list[tuple[float, Interval]]] = {}
    for row in rows:
        gains = list(gains_of(row, rows).values())
        if row.place.gbit is not None and gains and not row.is_dense:
            curves.setdefault(row.name, []).append((row.place.gbit, median_interval(gains)))
    return {name: points for name, points in curves.items() if len(points) >= FEWEST_RATES}


def _named(place: Setting) -> str:
    return _slug(f"{place.describe()} {place.fabric}")


def _drawn(name: str, caption: str, figure: Figure | None, rows: Sequence[MethodRow]) -> Iterator[Drawing]:
    if figure is not None:
        ids = tuple(dict.fromkeys(i for row in rows for i in row.ids))
        yield Drawing(name=f"compression-{name}", topic=TOPIC, caption=caption, figure=figure, record_ids=ids)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
