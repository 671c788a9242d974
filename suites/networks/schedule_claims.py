"""What the papers on flow scheduling, paths and circuits claim, judged from the suite's fluids.

The papers' networks and loads are larger, so levels are orders and wide bands. Where training is asked and no paper
says, the claim is the suite's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from analysis.claims import ClaimRow, Formula
from suites.networks.flow_levels import Rows, beside
from suites.networks.schedules import LAYERS_OF, RACK_MEGABYTES

LITTLE_MEGABYTES = 16  # that packets of 10 Gbit/s have sent before circuits are set
RINGS = ("paths-ring-1", "paths-ring-2", "paths-ring-3")


def schedule_claims(rows: Rows) -> Iterator[ClaimRow]:
    """Every claim on who serves flows with its verdict."""
    yield from _of_sizes(rows)
    yield from _of_training(rows)
    yield from _of_paths(rows)
    yield from _of_circuits(rows)


def _of_sizes(rows: Rows) -> Iterator[ClaimRow]:
    mixed = "schedule-mixed-70"
    yield beside(
        rows, "pFabric (SIGCOMM 2013): flows take at most half of fair sharing's time over their time alone",
        "Mean slowdown over fair sharing's", Formula.SLOWDOWN, ((mixed, "pfabric", "fair"),), high=0.5,
    )  # fmt: skip
    yield beside(
        rows, "PIAS (NSDI 2015, abstract): up to 50 % less completion, and sizes need not be known",
        "Mean completion of short flows over fair sharing's", Formula.COMPLETION, ((mixed, "pias", "fair"),), high=0.5,
    )  # fmt: skip
    yield beside(
        rows, "PIAS (IEEE/ACM ToN 2017, abstract): 1.1 % behind pFabric for short flows (5 % here)",
        "Mean completion of short flows over pFabric's", Formula.COMPLETION, ((mixed, "pias", "pfabric"),), high=1.05,
    )  # fmt: skip


def _of_training(rows: Rows) -> Iterator[ClaimRow]:
    jobs, mean = "schedule-jobs", "Mean time of four jobs' rings over"
    yield beside(
        rows, "Varys (SIGCOMM 2014, abstract): coflows end sooner on average than by fairness per flow, here by 20 %",
        f"{mean} that by fair sharing", Formula.GROUPS, ((jobs, "varys", "fair"),), high=0.8,
    )  # fmt: skip
    yield beside(
        rows, "A ring's flows are alike, so the shortest flow first orders rings as Varys does",
        f"{mean} that by pFabric", Formula.GROUPS, ((jobs, "varys", "pfabric"),), low=0.99, high=1.01,
    )  # fmt: skip
    yield beside(
        rows, "Varys (SIGCOMM 2014): where small flows make a large coflow, jobs end 5 % sooner than by pFabric",
        "Mean time of a server's job and a ring over that by pFabric", Formula.GROUPS,
        (("schedule-servers", "varys", "pfabric"),), high=0.95,
    )  # fmt: skip
    step = "End of the next forward over that"
    yield beside(
        rows, "P3 (MLSys 2019), in the network: the first layers first end a step 5 % sooner than first in first out",
        f"{step} by first in first out", Formula.USED,
        [(f"schedule-layers-{name}", "training", "fifo") for name in LAYERS_OF], high=0.95,
    )  # fmt: skip
    yield beside(
        rows, "Layers that share fairly need no priorities: these end a step at most 2 % sooner",
        f"{step} by fair sharing", Formula.USED,
        [(f"schedule-layers-{name}", "training", "fair") for name in LAYERS_OF], low=0.98,
    )  # fmt: skip


def _of_paths(rows: Rows) -> Iterator[ClaimRow]:
    hashed = "Goodput until the last flow's end over that with hashed paths"
    yield beside(
        rows, "Hedera (NSDI 2010, abstract): up to 113 % better than static load balancing",
        hashed, Formula.GOODPUT, [(group, "first-fit", "ecmp") for group in ("paths-stride", *RINGS)],
        low=2.13, some=True,
    )  # fmt: skip
    yield beside(
        rows, "Around a ring of random order Hedera gains 25 % or more",
        hashed, Formula.GOODPUT, [(group, "first-fit", "ecmp") for group in RINGS], low=1.25,
    )  # fmt: skip
    yield beside(
        rows, "FiConn (INFOCOM 2009): the least loaded of its detours carries more than shortest routes",
        "Goodput until the last flow's end over that of shortest routes", Formula.GOODPUT,
        (("paths-ficonn", "least-loaded", "ecmp"),), low=1.1,
    )  # fmt: skip


def _of_circuits(rows: Rows) -> Iterator[ClaimRow]:
    over = "Goodput over that of packets alone"
    yield beside(
        rows, "Helios (SIGCOMM 2010): a demand that stays gets most of circuits ten times as fast",
        over, Formula.GOODPUT, (("circuits-ring", "helios", "packets"),), low=5.0,
    )  # fmt: skip
    yield beside(
        rows, "c-Through's circuits are two-way: around a ring Helios has 1.5 times its goodput or more",
        "Goodput over c-Through's", Formula.GOODPUT, (("circuits-ring", "helios", "c-through"),), low=1.5,
    )  # fmt: skip
    yield beside(
        rows, "c-Through (SIGCOMM 2010): all-to-all gains less from circuits, at most twice the goodput",
        over, Formula.GOODPUT, [("circuits-all-to-all", way, "packets") for way in ("helios", "c-through")], high=2.0,
    )  # fmt: skip
    few = [each for each in RACK_MEGABYTES if each <= LITTLE_MEGABYTES]
    yield beside(
        rows, f"Up to {LITTLE_MEGABYTES} MB per rack are sent before circuits are set: nothing is gained",
        over, Formula.GOODPUT, [(f"circuits-{each}", "helios", "packets") for each in few], high=1.01,
    )  # fmt: skip
    yield beside(
        rows, "From four times as much on circuits pay: 1.5 times the goodput or more",
        over, Formula.GOODPUT,
        [(f"circuits-{each}", "helios", "packets") for each in RACK_MEGABYTES if each not in few], low=1.5,
    )  # fmt: skip
