"""Which figures of methods and targets a summary holds, with their captions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from analysis.rows import Drawing
from analysis.targets.rows import TargetStudy

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOPIC = "targets"
_COURSE = (
    "Held-out {metric} against steps and, where there is a clock, against time ({clock}). Lines: means over repeats; "
    "bands: all repeats; dotted: the target ({rule}). {title}, {evidence}."
)
_PRICES = (
    "What a method had paid at its first evaluation at the target over what the dense run had paid, repeat by repeat; "
    "medians. Blue is cheaper. Not reached: half of the repeats or more never got there."
)


def target_drawings(studies: Sequence[TargetStudy]) -> Iterator[Drawing]:
    """Curves of every setting, then prices over all settings of a suite."""
    from analysis.targets import plots as target_plots

    for study in studies:
        caption = _COURSE.format(
            metric=study.metric, clock=study.clock, rule=study.rule, title=study.title, evidence=study.evidence
        )
        yield from _drawn(_stem("target", study), caption, target_plots.courses(study), [study])
    for suite in dict.fromkeys(study.suite for study in studies):
        own = [study for study in studies if study.suite == suite]
        kinds = (
            ("steps", target_plots.prices(own, lambda row: row.steps_by_repeat, "Steps to the target over dense")),
            ("bytes", target_plots.prices(own, lambda row: row.bytes_by_repeat, "Bytes to the target over dense")),
            (
                "time",
                target_plots.prices(
                    own, lambda row: row.times_s_by_repeat, f"Time to the target over dense ({_clocks(own)})"
                ),
            ),
        )
        for kind, figure in kinds:
            yield from _drawn(f"target-{kind}-{_slug(suite)}", _PRICES, figure, own)


def _clocks(studies: Sequence[TargetStudy]) -> str:
    return ", ".join(sorted({study.clock for study in studies}))


def _drawn(name: str, caption: str, figure: Figure | None, studies: Sequence[TargetStudy]) -> Iterator[Drawing]:
    if figure is not None:
        ids = tuple(dict.fromkeys(i for study in studies for row in study.rows for i in row.record_ids))
        yield Drawing(name=name, topic=TOPIC, caption=caption, figure=figure, record_ids=ids)


def _stem(kind: str, study: TargetStudy) -> str:
    return f"{kind}-{_slug(f'{study.suite}-{study.workload}-{study.where}')}"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
