"""What each library takes for each collective: bandwidths by size, α, β and the share of the line, over repeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.stats import Interval, median_interval
from results.collectives import LARGE_BYTES, CollectiveFacts, Operation
from results.record import FabricFacts, Record, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeRow:
    """One size: seconds, and algorithm and bus bandwidth in bit/s, over repeats."""

    num_bytes: int
    time_s: Interval
    algorithm_bps: Interval
    bus_bps: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """A library's operation on one fabric.

    `share` is the bus bandwidth at 25 MB over the line's rate (None: no rate, or that size was left out). `alpha_s` and
    `beta_s_per_byte` are the fits of each repeat, `residual` the largest relative error of these, `alphas` by repeat.
    """

    suite: str
    library: str
    operation: Operation
    num_ranks: int
    rate_bps: float | None
    sizes: tuple[SizeRow, ...]
    alpha_s: Interval | None
    beta_s_per_byte: Interval | None
    residual: float | None
    share: Interval | None
    alphas: tuple[tuple[int, float], ...]
    ids: tuple[str, ...]

    @property
    def num_repeats(self) -> int:
        """Trials that ended well."""
        return len(self.ids)


def collective_rows(groups: Iterable[Sequence[Record]]) -> tuple[CollectiveRow, ...]:
    """A row for each cell that timed a collective, of the repeats that ended well, operation by operation."""
    rows = (row for records in groups for row in _row([one for one in records if one.status is Status.OK]))
    order = list(Operation)
    return tuple(sorted(rows, key=lambda row: (row.num_ranks, row.rate_bps or 0.0, order.index(row.operation))))


def _row(records: Sequence[Record]) -> Iterator[CollectiveRow]:
    known = [(record, record.collective) for record in records if record.collective is not None]
    if not known:
        return
    first, facts = known[0]
    every = [own for _, own in known]
    yield CollectiveRow(
        suite=first.suite,
        library=facts.library,
        operation=facts.operation,
        num_ranks=facts.num_ranks,
        rate_bps=first.fabric.rate_bps,
        sizes=tuple(_sizes(every)),
        alpha_s=_over(every, lambda own: own.alpha_s),
        beta_s_per_byte=_over(every, lambda own: own.beta_s_per_byte),
        residual=max((own.fit_residual for own in every if own.fit_residual is not None), default=None),
        share=_share(every, first.fabric),
        alphas=tuple((record.repeat, own.alpha_s) for record, own in known if own.alpha_s is not None),
        ids=tuple(record.id for record, _ in known),
    )


def _over(every: Sequence[CollectiveFacts], value: Callable[[CollectiveFacts], float | None]) -> Interval | None:
    """Of what every repeat knows."""
    found = [one for one in map(value, every) if one is not None]
    return median_interval(found) if len(found) == len(every) else None


def _share(every: Sequence[CollectiveFacts], fabric: FabricFacts) -> Interval | None:
    rate_bps = fabric.rate_bps
    bus = [own.bus_bps(LARGE_BYTES) for own in every]
    known = [one / rate_bps for one in bus if one is not None and rate_bps]
    return median_interval(known) if known and len(known) == len(every) else None


def _sizes(every: Sequence[CollectiveFacts]) -> Iterator[SizeRow]:
    """Sizes that every repeat timed: a slow hour may leave the largest out."""
    common = set.intersection(*({own.num_bytes for own in facts.sizes} for facts in every))
    for num_bytes in sorted(common):
        here = [own for facts in every for own in facts.sizes if own.num_bytes == num_bytes]
        algorithm = median_interval([own.algorithm_bps for own in here])
        yield SizeRow(
            num_bytes=num_bytes,
            time_s=median_interval([own.median_s for own in here]),
            algorithm_bps=algorithm,
            bus_bps=algorithm.times(every[0].factor),
        )
