"""What the papers claim of weaker consistency, judged by the time to BSP's target on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.stats import ratio_by_repeat
from analysis.study import Evidence, Study
from suites.consistency.grid import NAME


def _sooner(evidence: Evidence, policy: str, cluster: str) -> Iterator[CellValue]:
    """BSP's time to the target over the policy's, paired by seed."""
    for study in evidence.targets:
        if study.suite != NAME or cluster not in study.where:
            continue
        dense = study.dense.times_s_by_repeat
        for row in study.rows:
            ratio = ratio_by_repeat(dense, row.times_s_by_repeat)
            if _is(row.strategy, policy) and ratio is not None:
                ids = study.dense.record_ids, row.record_ids
                yield CellValue(f"{row.strategy}, {study.title}", ratio, ids)


def _is(strategy: str, policy: str) -> bool:
    """A whole text, or a method by its name whatever its parameters are."""
    return strategy == policy or strategy.partition("(")[0] == policy


CLAIMS = (
    ("ssp", "straggler", "SSP (Ho et al., NIPS 2013) reaches BSP's target sooner with one straggler"),
    (
        "dynssp(staleness=3)",
        "straggler",
        "DynSSP (Jiang et al., SIGMOD 2017) reaches BSP's target sooner with one straggler",
    ),
    ("asp", "straggler", "ASP reaches BSP's target sooner with one straggler"),
    ("ssp", "jitter", "SSP reaches BSP's target sooner where steps vary"),
)


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Each claim over the clusters that it is about."""
    if NAME not in evidence.suites:
        return
    for policy, cluster, claim in CLAIMS:
        level = Level(
            claim=claim,
            quantity="BSP's time to the target over its own",
            low=1.0,
            formula=Formula.SOONER,
            unit="×",
        )
        yield judge(level, list(_sooner(evidence, policy, cluster)))


STUDY = Study(suite=NAME, claims=claims)
