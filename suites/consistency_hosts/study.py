"""Whether workers that are processes step as the virtual clock says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.stats import paired_ratio
from analysis.steps.rows import StepRow
from analysis.study import Evidence, Study
from suites.consistency_hosts.grid import NAME

AGREES = Level(
    claim="Workers and servers as processes step as the virtual clock says, within 5 %",
    quantity="Measured over predicted step",
    low=0.95,
    high=1.05,
    formula=Formula.STEP_BY_CLOCK,
)


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Its one hypothesis, over every cluster and policy."""
    if NAME in evidence.suites:
        yield judge(AGREES, [found for row in evidence.steps if row.place.suite == NAME for found in _ratio(row)])


def _ratio(row: StepRow) -> Iterator[CellValue]:
    if row.by_repeat and row.predicted_s is not None:
        steps_s = [step_s for _, step_s in row.by_repeat]
        ratio = paired_ratio(steps_s, [row.predicted_s] * len(steps_s))
        yield CellValue(f"{row.name} ({row.place.describe()})", ratio, (row.ids,))


STUDY = Study(suite=NAME, timed=True, claims=claims)
