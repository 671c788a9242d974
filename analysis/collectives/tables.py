"""Tables of collectives for the terminal and CSV: α, β and the share of the line, then every size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.collectives.rows import CollectiveRow, SizeRow
from analysis.terminal import ColumnOf, Listing, columns_of
from analysis.wording import interval, percent, rate

Sized = tuple[CollectiveRow, SizeRow]
FITS: tuple[ColumnOf[CollectiveRow], ...] = (
    ColumnOf("α, µs\n[95 %]", 1, lambda row: interval(row.alpha_s, 1e6)),
    ColumnOf("β, ns/kB\n[95 %]", 2, lambda row: interval(row.beta_s_per_byte, 1e12)),
    ColumnOf("fit\n±", 3, lambda row: "–" if row.residual is None else percent(row.residual)),
    ColumnOf("bus at 25 MB\nof the line", 0, lambda row: interval(row.share)),
    ColumnOf("n", 4, lambda row: str(row.num_repeats)),
)
SIZES: tuple[ColumnOf[Sized], ...] = (
    ColumnOf("bytes", 0, lambda row: f"{row[1].num_bytes:,}"),
    ColumnOf("time, µs\n[95 %]", 1, lambda row: interval(row[1].time_s, 1e6)),
    ColumnOf("algorithm", 2, lambda row: rate(row[1].algorithm_bps.median)),
    ColumnOf("bus", 1, lambda row: rate(row[1].bus_bps.median)),
)
NOTE = "Time = α + β · bytes, fitted to all sizes by relative errors; – where a size was left out."


def collective_tables(rows: Sequence[CollectiveRow]) -> Iterator[Listing]:
    """One table of fits and one of sizes for each number of ranks and rate."""
    for place in dict.fromkeys(map(where, rows)):
        here = [row for row in rows if where(row) == place]
        labels = tuple(f"{row.operation}, {row.library}" for row in here)
        yield Listing(
            title=f"collectives: {place}",
            heading="operation, library",
            labels=labels,
            columns=columns_of(FITS, here),
            notes=(NOTE,),
        )
        sized = [(row, own) for row in here for own in row.sizes]
        yield Listing(
            title=f"collectives by size: {place}",
            heading="operation, library",
            labels=tuple(f"{row.operation}, {row.library}" for row, _ in sized),
            columns=columns_of(SIZES, sized),
        )


def where(row: CollectiveRow) -> str:
    """`2 ranks, 1 Gbit/s`."""
    return f"{row.num_ranks} ranks" + ("" if row.rate_bps is None else f", {rate(row.rate_bps)}")
