"""Which figures of step times a summary holds, with their captions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.rows import Drawing, Summary
from analysis.steps.rows import StepRow, StudyRow
from analysis.wording import numbered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOPIC = "steps-by-link"
DEFAULT_EXCHANGE = "all-reduce"  # of systems, which say nothing of it
_RATE = (
    "Step time and scaling efficiency (the step of one worker alone over this one, weak scaling) over the rate that "
    "the link stands for. Lines: predicted on a virtual clock; points: measured, medians and 95 % intervals. "
    "Efficiencies above 100 % are noise of the step alone."
)
_WORKERS = (
    "Scaling efficiency over the number of workers, batch a worker fixed. Lines: predicted on a virtual clock, beyond "
    "8 workers from α and β extrapolated; points: measured."
)
_PAYS = (
    "Rates of the link, in Gbit/s, at which a method is more than 1 % faster than {reference}: curves over the rate "
    "are compared and the crossing interpolated between neighbours: measured ones, or predicted ones where these "
    "know more rates. Light: on no rate, dark: on all."
)
_ERRORS = (
    "Every measured cell against its prediction, of which no training step of the cell was seen. Grey: within 8 %. "
    "Kendall's τ counts pairs of methods in one place whose measured intervals are disjoint and medians differ by more "
    "than 1 %."
)


def step_drawings(summary: Summary) -> Iterator[Drawing]:
    """Curves of every network, then where methods pay, then predictions against measurements."""
    from analysis.steps import plots as step_plots

    for study in summary.studies:
        for exchange in _exchanges(study):
            # A line over rates or workers would join topologies: a suite of those draws its own.
            rows = [row for row in study.rows if exchange_of(row) == exchange and not row.place.network]
            stem = _slug(f"{study.suite}-{study.workload}-{study.batch_size}-{exchange}")
            where = f" {study.title}, {exchange}."
            yield from _drawn(f"rate-{stem}", _RATE + where, step_plots.over_rate(study, rows), rows)
            yield from _drawn(f"workers-{stem}", _WORKERS + where, step_plots.over_workers(study, rows), rows)
    yield from _pays_drawings(summary.studies)
    every = [row for study in summary.studies for row in study.rows if row.error is not None]
    yield from _drawn("predicted", _ERRORS, step_plots.predicted_against_measured(every, summary.errors), every)


def exchange_of(row: StepRow) -> str:
    """How its ranks combine messages."""
    exchange = row.strategy.of_slot("exchange")
    return DEFAULT_EXCHANGE if exchange is None else exchange.name


def _pays_drawings(studies: Sequence[StudyRow]) -> Iterator[Drawing]:
    """For each suite one of all studies that have the same methods: of others most of a table would be empty."""
    from analysis.steps import plots as step_plots

    suites: dict[str, dict[frozenset[str], list[StudyRow]]] = {}
    for study in (study for study in studies if study.pays):
        methods = frozenset(pays.name for pays in study.pays)
        suites.setdefault(study.suite, {}).setdefault(methods, []).append(study)
    for suite, same in suites.items():
        for place, own in enumerate(same.values()):
            rows = [row for study in own for row in study.rows]
            caption = _PAYS.format(reference=own[0].reference)
            yield from _drawn(numbered(f"pays-{suite}", place), caption, step_plots.where_it_pays(own), rows)


def _exchanges(study: StudyRow) -> list[str]:
    return list(dict.fromkeys(map(exchange_of, study.rows)))


def _drawn(name: str, caption: str, figure: Figure | None, rows: Sequence[StepRow]) -> Iterator[Drawing]:
    if figure is not None:
        ids = tuple(dict.fromkeys(i for row in rows for i in row.ids))
        yield Drawing(name=name, topic=TOPIC, caption=caption, figure=figure, record_ids=ids)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
