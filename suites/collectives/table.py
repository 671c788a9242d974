"""Tables of what was measured, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from fabric.rates import format_rate
from suites.collectives.measure import CollectiveTime, Fitted


def large_table(fits: Sequence[Fitted], where: str) -> Table:
    """α, β and the share of the line."""
    table = Table(title=f"time = α + β · size; bus bandwidth at 25 MB over the line ({where})", title_justify="left")
    for name in ("library", "operation"):
        table.add_column(name)
    for name in ("α µs", "β ns/kB", "fit ±", "of line"):
        table.add_column(name, justify="right")
    for own in fits:
        share = "–" if own.share_of_line is None else f"{own.share_of_line:.3f}"
        beta = f"{own.link.beta_s_per_byte * 1e12:.0f}"
        table.add_row(
            own.library, own.operation, f"{own.link.alpha_s * 1e6:.0f}", beta, f"{own.link.residual:.0%}", share
        )
    return table


def small_table(measured: Sequence[CollectiveTime], where: str) -> Table:
    """Every size: time, algorithm bandwidth, bus bandwidth."""
    title = f"medians of rows, lowest to highest ({where})"
    table = Table(title=title, title_justify="left")
    for name in ("library", "operation"):
        table.add_column(name)
    for name in ("size B", "time µs", "lowest", "highest", "algorithm", "bus"):
        table.add_column(name, justify="right")
    for own in measured:
        times = (f"{seconds * 1e6:.0f}" for seconds in (own.median_s, own.lowest_s, own.highest_s))
        bandwidths = (format_rate(round(bps, -4)) for bps in (own.algorithm_bps, own.bus_bps))
        table.add_row(own.library, own.operation, f"{own.num_bytes:,}", *times, *bandwidths)
    return table
