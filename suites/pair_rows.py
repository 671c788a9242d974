"""What studies of jobs that share devices have in common: claims about cells that each selects from the pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.cells import SIMULATED
from analysis.claims import CellValue, ClaimRow, Level, Operands, judge
from analysis.sharing.rows import CROSSOVER, PairRow, SharingRow
from analysis.stats import Interval, computed, median_interval
from analysis.study import Evidence

Select = Callable[[Sequence[PairRow]], Iterator[CellValue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairClaim(Level):
    """A level with the cells that it is about, of these suites; none named: the study's own."""

    select: Select
    suites: tuple[str, ...] = ()


def judged(claims: Iterable[PairClaim], evidence: Evidence, suite: str) -> Iterator[ClaimRow]:
    """Each claim of the study of `suite` with its outcome, in order."""
    for claim in claims:
        suites = claim.suites or (suite,)
        yield judge(claim, list(claim.select([pair for pair in evidence.pairs if pair.suite in suites])))


def operands(pair: PairRow, *rows: SharingRow) -> Operands:
    """The records that a figure is of: first those of the jobs one after the other."""
    return (pair.alone_ids, *(row.record_ids for row in rows))


def over_repeats(pair: PairRow, ratios: Sequence[float]) -> Interval:
    """Over repeats; a virtual clock's are no sample."""
    found = median_interval(ratios)
    return computed(found) if pair.evidence == SIMULATED else found


def shares(of: Callable[[SharingRow], Interval | None], accepts: Callable[[PairRow, SharingRow], bool]) -> Select:
    """What crossover with link turns uses `of` a limit, where `accepts` the cell."""

    def select(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
        for pair in pairs:
            row = pair.row(CROSSOVER)
            if row is not None and (share := of(row)) is not None and accepts(pair, row):
                yield CellValue(row.cell, share, operands(pair, row))

    return select


def of_fifo(row: SharingRow) -> Interval | None:
    """The share of the gain that T* predicts."""
    return row.bound_share


def of_limit(row: SharingRow) -> Interval | None:
    """The share of the limit that no turns can pass."""
    return row.limit_share


def gains(way: str, accepts: Callable[[PairRow], bool]) -> Select:
    """The gain of one policy over running one after the other, where `accepts` the pair."""

    def select(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
        for pair in pairs:
            row = pair.row(way)
            if row is not None and row.throughput is not None and accepts(pair):
                yield CellValue(row.cell, row.throughput, operands(pair, row))

    return select


def against(way: str, accepts: Callable[[PairRow], bool] = lambda _: True) -> Select:
    """The gain of crossover over that of another policy, repeat by repeat."""

    def select(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
        for pair in pairs:
            row, other = pair.row(CROSSOVER), pair.row(way)
            if row is not None and other is not None and accepts(pair):
                theirs = {one.repeat: one.gain for one in other.paired}
                ratios = [one.gain / theirs[one.repeat] for one in row.paired if one.repeat in theirs]
                if ratios:
                    yield CellValue(row.cell, over_repeats(pair, ratios), operands(pair, row, other))

    return select
