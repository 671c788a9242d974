"""What the papers on transports claim, judged from the suite's flows in the packet engine.

Their networks are scaled down here, so levels are orders and wide bands of ratios, never absolute times.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.claims import ClaimRow, Formula
from suites.networks.flow_levels import Rows, alone, beside
from suites.networks.packets import LIMIT_FLOWS


def packet_claims(rows: Rows) -> Iterator[ClaimRow]:
    """Every claim on transports with its verdict."""
    yield from _of_sharing(rows)
    yield from _of_queues(rows)
    yield from _of_completions(rows)
    yield from _of_incast(rows)
    yield from _of_pauses(rows)


def _of_sharing(rows: Rows) -> Iterator[ClaimRow]:
    share = "Least over mean goodput of four flows, one of them local"
    yield alone(
        rows, "DCQCN (SIGCOMM 2015, figure 8): flows behind different ports share a link within a third of C/4",
        share, Formula.LEAST_SHARE, ("packets-fair",), ("dcqcn",), low=0.65,
    )  # fmt: skip
    yield alone(
        rows, "DCQCN (SIGCOMM 2015, figure 3): PFC alone shares by port, and three flows behind one get 0.7 or less",
        share, Formula.LEAST_SHARE, ("packets-fair",), ("roce-v2",), high=0.7,
    )  # fmt: skip


def _of_queues(rows: Rows) -> Iterator[ClaimRow]:
    yield beside(
        rows, "DCQCN (SIGCOMM 2015, section 6.3): about half of DCTCP's queue at 20 to 1 (77 over 163 KB)",
        "Mean queue over DCTCP's", Formula.QUEUE, (("packets-queue", "dcqcn", "dctcp"),), low=0.2, high=0.8,
    )  # fmt: skip
    yield beside(
        rows, "TIMELY (SIGCOMM 2015, section 6.2): PFC alone has about nine times its round trip (3 to 30 here)",
        "Mean round trip over TIMELY's", Formula.ROUND_TRIP, (("packets-round-trip", "roce-v2", "timely"),),
        low=3.0, high=30.0,
    )  # fmt: skip
    yield alone(
        rows, "DCTCP (SIGCOMM 2010, figure 1): the queue stays at the threshold (0.5 to 1.5 of it)",
        "Mean queue over the threshold", Formula.QUEUE_OVER_MARK, ("packets-buffer",), ("dctcp",), low=0.5, high=1.5,
    )  # fmt: skip
    yield beside(
        rows, "DCTCP (SIGCOMM 2010, figure 1): TCP fills the buffer, with 1.5 times its queue or more",
        "Mean queue over DCTCP's", Formula.QUEUE,
        (("packets-buffer", "reno", "dctcp"), ("packets-buffer", "cubic", "dctcp")), low=1.5,
    )  # fmt: skip
    yield alone(
        rows, "DCTCP (SIGCOMM 2010, section 3.3): N flows' queue peaks at K + N packets, within 15 %",
        "Highest queue over K + N packets", Formula.HIGHEST_QUEUE,
        [f"packets-limit-{count}" for count in LIMIT_FLOWS], ("dctcp",), low=0.85, high=1.15,
    )  # fmt: skip


def _of_completions(rows: Rows) -> Iterator[ClaimRow]:
    pair = (("packets-short-long", "hpcc", "dcqcn"),)
    yield beside(
        rows, "HPCC (SIGCOMM 2019, section 5.3): short flows under incast end sooner than with DCQCN, by 5 % or more",
        "Mean completion of short flows over DCQCN's", Formula.COMPLETION, pair, high=0.95,
    )  # fmt: skip
    yield beside(
        rows, "HPCC (SIGCOMM 2019, section 5.3): long flows get less than with DCQCN",
        "Goodput of long flows over DCQCN's", Formula.GOODPUT, pair, high=1.0,
    )  # fmt: skip
    yield beside(
        rows, "IRN (SIGCOMM 2018, section 4.2): RoCE with PFC takes 1.06 to 1.83 times as long as IRN without",
        "Mean completion over IRN's", Formula.COMPLETION, (("packets-mixed-70", "roce-v2", "irn"),),
        low=1.06, high=1.83,
    )  # fmt: skip


def _of_incast(rows: Rows) -> Iterator[ClaimRow]:
    deep = ("packets-incast-16", "packets-incast-32")
    yield alone(
        rows, "Vasudevan et al. (SIGCOMM 2009): with timeouts of 200 ms incast takes 90 % of the goodput",
        "Goodput over line rate", Formula.LINE_SHARE, deep, ("reno-200ms",), high=0.1,
    )  # fmt: skip
    yield alone(
        rows, "Vasudevan et al. (SIGCOMM 2009): timeouts of 200 µs keep more than half of it",
        "Goodput over line rate", Formula.LINE_SHARE, deep, ("reno-200us",), low=0.5,
    )  # fmt: skip
    yield alone(
        rows, "DCTCP (SIGCOMM 2010, figure 18): no collapse while a window of two packets per sender fits the port",
        "Goodput over line rate", Formula.LINE_SHARE, ("packets-incast-16",), ("dctcp-200ms",),
        low=0.5,
    )  # fmt: skip


def _of_pauses(rows: Rows) -> Iterator[ClaimRow]:
    waits = "Runs in which links wait in a circle"
    yield alone(
        rows, "A cyclic buffer dependency deadlocks lossless links (Hu et al., HotNets 2016)",
        waits, Formula.CIRCLE, ("packets-circle",), ("roce-v2", "infiniband"), low=1.0,
    )  # fmt: skip
    yield alone(
        rows, "IRN (SIGCOMM 2018): without PFC the same circle does not deadlock",
        waits, Formula.CIRCLE, ("packets-circle",), ("irn",), high=0.0,
    )  # fmt: skip
    yield beside(
        rows, "DCQCN (SIGCOMM 2015, figure 4): PFC halves the goodput of a victim that shares no congested link",
        "Goodput of the victim over that without PFC", Formula.GOODPUT, (("packets-victim", "roce-v2", "irn"),),
        high=0.5,
    )  # fmt: skip
