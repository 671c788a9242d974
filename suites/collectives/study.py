"""What is claimed of libraries: how much of the line each uses, and whose small messages start sooner."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.collectives.rows import CollectiveRow
from analysis.stats import median_interval
from analysis.study import Evidence, Study
from results.collectives import Operation
from suites.collectives.grid import NAME

OF_LINE = 0.93
CALLED = {"gloo": "gloo", "mpi": "MPI", "horovod": "Horovod", "nccl": "NCCL"}


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Every claim with its verdict; none where the suite was not asked for."""
    if NAME not in evidence.suites:
        return
    rows = [row for row in evidence.collectives if row.suite == NAME]
    for library in ("gloo", "mpi", "horovod"):
        yield judge(_all_reduce(library), [_share(row) for row in _of(rows, library, Operation.ALL_REDUCE)])
        others = [operation for operation in Operation if operation is not Operation.ALL_REDUCE]
        yield judge(_others(library), [_share(row) for row in _of(rows, library, *others)])
    yield judge(_SOONER, list(_alphas(rows, "gloo", "mpi")))


def _all_reduce(library: str) -> Level:
    return Level(
        claim=f"{CALLED[library]}: all-reduce of 25 MB at {OF_LINE:g} of the line or more",
        quantity="Bus bandwidth at 25 MB over the line's rate; headers leave 0.957 to payload",
        low=OF_LINE,
        formula=Formula.BUS_SHARE,
    )


def _others(library: str) -> Level:
    return Level(
        claim=f"{CALLED[library]}: every other collective of 25 MB at {OF_LINE:g} of the line or more",
        quantity="Bus bandwidth at 25 MB over the line's rate",
        low=OF_LINE,
        formula=Formula.BUS_SHARE,
    )


_SOONER = Level(
    claim="MPI's small messages start sooner than gloo's, in every collective",
    quantity="α of gloo over α of MPI, repeat by repeat",
    low=1.0,
    formula=Formula.ALPHA_RATIO,
    unit="×",
)


def _of(rows: Sequence[CollectiveRow], library: str, *operations: Operation) -> list[CollectiveRow]:
    """Those that were timed at 25 MB."""
    return [row for row in rows if row.library == library and row.operation in operations and row.share is not None]


def _share(row: CollectiveRow) -> CellValue:
    assert row.share is not None
    return CellValue(f"{row.operation}, {row.num_ranks} ranks", row.share, (row.ids,))


def _alphas(rows: Sequence[CollectiveRow], other: str, own: str) -> Iterator[CellValue]:
    for row in (row for row in rows if row.library == own):
        beside = next((one for one in rows if one.library == other and _place(one) == _place(row)), None)
        mine = dict(row.alphas)
        ratios = [theirs / mine[repeat] for repeat, theirs in beside.alphas if mine.get(repeat)] if beside else []
        if beside is not None and ratios:
            yield CellValue(f"{row.operation}, {row.num_ranks} ranks", median_interval(ratios), (beside.ids, row.ids))


def _place(row: CollectiveRow) -> tuple[Operation, int, float | None]:
    return row.operation, row.num_ranks, row.rate_bps


STUDY = Study(suite=NAME, claims=claims)
