"""Optimisers inside the jobs, alone and with crossover: the less they leave exposed, the less is left to gain."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from analysis.sharing.axes import RHO
from analysis.sharing.rows import CROSSOVER, OptimisedRow, OptimiserRow, PairRow, SharingRow
from analysis.stats import Interval, median_interval

FEWEST = 3  # strategies that make a comparison
ELSEWHERE_EQUAL = ("", RHO)  # on other axes more than the strategy differs
Tried = tuple[PairRow, SharingRow]


def optimisers(pairs: Sequence[PairRow]) -> tuple[OptimiserRow, ...]:
    """Every set of jobs on one network that ran with crossover under at least three strategies."""
    groups: dict[tuple[object, ...], dict[str, Tried]] = {}
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if pair.axis in ELSEWHERE_EQUAL and row is not None and row.paired and _exposed_shares(row):
            work = tuple((workload, batch_size) for workload, _, _, batch_size in pair.work)
            groups.setdefault((pair.key, work), {}).setdefault(pair.strategy, (pair, row))
    return tuple(_row(list(tried.values())) for tried in groups.values() if len(tried) >= FEWEST)


def _row(tried: Sequence[Tried]) -> OptimiserRow:
    pair, plain = max(tried, key=lambda one: statistics.median(sum(paired.solo_s) for paired in one[1].paired))
    rows = [_optimised(other, row, plain) for other, row in tried]
    return OptimiserRow(
        names=f"{pair.work[0][0]} ×{len(pair.work)}"
        if not pair.is_mixed
        else " + ".join(work[0] for work in pair.work),
        where=pair.where,
        evidence=pair.evidence,
        plain=pair.strategy,
        rows=tuple(sorted(rows, key=lambda row: -row.exposed_share)),
    )


def _optimised(pair: PairRow, row: SharingRow, plain: SharingRow) -> OptimisedRow:
    assert row.throughput is not None
    base = {one.repeat: one.solo_s for one in plain.paired}
    both = [(base[one.repeat], one) for one in row.paired if one.repeat in base]
    return OptimisedRow(
        name=pair.strategy,
        exposed_share=statistics.fmean(_exposed_shares(row)),
        alone=_over([_normalised(plain_s, one.solo_s) / len(plain_s) for plain_s, one in both]),
        together=_over([_normalised(plain_s, one.here_s) for plain_s, one in both]),
        gain=row.throughput,
        bound=row.bound,
        record_ids=tuple(i for one in pair.rows for i in one.record_ids),
        of=(next((one.record_ids for one in pair.rows if one.is_reference), ()), row.record_ids),
    )


def _exposed_shares(row: SharingRow) -> list[float]:
    return [job.exposed_share for job in row.jobs if job.exposed_share is not None]


def _normalised(plain_s: Sequence[float], here_s: Sequence[float]) -> float:
    return sum(plain / here for plain, here in zip(plain_s, here_s, strict=True))


def _over(values: Sequence[float]) -> Interval | None:
    return median_interval(values) if values else None
