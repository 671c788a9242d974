"""Whether workers that are processes step as the virtual clock says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
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
        yield judge(AGREES, list(_ratios(evidence)))


def _ratios(evidence: Evidence) -> Iterator[CellValue]:
    for row in evidence.steps:
        if row.place.suite == NAME and row.step_time_s is not None and row.predicted_s is not None:
            name = f"{row.name} ({row.place.describe()})"
            yield CellValue(name, row.step_time_s.times(1 / row.predicted_s), (row.ids,))


STUDY = Study(suite=NAME, timed=True, claims=claims)
