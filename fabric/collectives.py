"""What a collective sends: the one table that bytes, costs and simulated networks derive from.

A collective among P ranks is a sequence of rounds. In a round every flow starts at once, and the next round waits for
all of them. n is the number of bytes of one rank's tensor, unless said otherwise:

    all-reduce   2(P−1) rounds, each rank n/P to the next       ring (Patarasuk and Yuan, JPDC 2009)
    all-gather   P−1 rounds, each rank n to the next            ring
    all-to-all   P−1 rounds, each rank n/(P−1) to another one   n is what a rank sends in all
    gather       1 round, each rank but the root n to the root
    broadcast    ⌈log₂ P⌉ rounds, each rank that has n to one   binomial tree
    transfer     1 round, each rank n to the next

Other libraries' collectives, which no primitive asks for, are on the paced link too:

    reduce-scatter  P−1 rounds, each rank n/P to the next       ring, the first half of the all-reduce
    reduce          as broadcast, the other way round
    scatter         as gather, the other way round              n is what one rank gets
    barrier         ⌈log₂ P⌉ rounds without bytes               dissemination (Hensgen et al., IJPP 1988)

It knows no tensors and no library, so a simulated network may take its flows from here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import NamedTuple


class Collective(StrEnum):
    """The collectives; the first six by the names of the primitives that ask for them (`baselines.api`)."""

    ALL_REDUCE = "AllReduce"
    ALL_GATHER = "AllGather"
    ALL_TO_ALL = "AllToAll"
    GATHER = "Gather"
    BROADCAST = "Broadcast"
    TRANSFER = "Transfer"
    REDUCE_SCATTER = "ReduceScatter"
    REDUCE = "Reduce"
    SCATTER = "Scatter"
    BARRIER = "Barrier"


_MIRRORED = {Collective.REDUCE: Collective.BROADCAST, Collective.SCATTER: Collective.GATHER}


class RankFlow(NamedTuple):
    """`num_bytes` from rank `source` to rank `destination`; a tuple, since an all-to-all has P² of them."""

    source: int
    destination: int
    num_bytes: float


@dataclass(frozen=True, slots=True)
class Round:
    """Flows that start at once, `times` times over: the steps of a ring differ only in which part they carry."""

    flows: tuple[RankFlow, ...]
    times: int = 1


@dataclass(frozen=True, slots=True)
class Load:
    """What a collective asks of a network, with n = 1 byte.

    `num_rounds` follow each other. A rank sends `num_sent` flows and `sent_bytes`, each the mean over ranks. The links
    of the busiest host carry `link_bytes` in one direction, summed over rounds.
    """

    num_rounds: int
    num_sent: float
    sent_bytes: float
    link_bytes: float


def flows_of(collective: Collective, world: int, num_bytes: float) -> Iterator[Round]:
    """The rounds of `collective` among `world` ranks, `num_bytes` as in the table above; none for a rank alone.

    The root is rank 0. Raises: ValueError if there is no rank.
    """
    if world < 1:
        raise ValueError(f"a collective among {world} ranks; there is at least 1")
    if world == 1:
        return
    match collective:
        case Collective.ALL_REDUCE:
            yield _shift(world, 1, num_bytes / world, 2 * (world - 1))
        case Collective.ALL_GATHER:
            yield _shift(world, 1, num_bytes, world - 1)
        case Collective.ALL_TO_ALL:
            yield from (_shift(world, distance, num_bytes / (world - 1)) for distance in range(1, world))
        case Collective.GATHER:
            yield Round(tuple(RankFlow(rank, 0, num_bytes) for rank in range(1, world)))
        case Collective.BROADCAST:
            yield from (_doubling(world, 1 << level, num_bytes) for level in range((world - 1).bit_length()))
        case Collective.TRANSFER:
            yield _shift(world, 1, num_bytes)
        case Collective.REDUCE_SCATTER:
            yield _shift(world, 1, num_bytes / world, world - 1)
        case Collective.REDUCE | Collective.SCATTER:
            yield from _reversed(flows_of(_MIRRORED[collective], world, num_bytes))
        case Collective.BARRIER:
            yield from (_shift(world, 1 << level, 0.0) for level in range((world - 1).bit_length()))


def _shift(world: int, distance: int, num_bytes: float, times: int = 1) -> Round:
    """Every rank to the one `distance` behind it."""
    return Round(tuple(RankFlow(rank, (rank + distance) % world, num_bytes) for rank in range(world)), times)


def _doubling(world: int, num_holders: int, num_bytes: float) -> Round:
    """The first `num_holders` ranks have it; each gives it to one that has not."""
    receivers = range(num_holders, min(2 * num_holders, world))
    return Round(tuple(RankFlow(rank - num_holders, rank, num_bytes) for rank in receivers))


def _reversed(rounds: Iterator[Round]) -> Iterator[Round]:
    """What was received is sent back, the last round first."""
    for own in reversed(list(rounds)):
        yield Round(tuple(RankFlow(flow.destination, flow.source, flow.num_bytes) for flow in own.flows), own.times)


@cache
def load_of(collective: Collective, world: int) -> Load:
    """The load of `collective` among `world` ranks per byte of n, of the flows of `flows_of`.

    In closed form, since the flows grow with the square of the number of ranks. Raises: ValueError as `flows_of`.
    """
    if world < 1:
        raise ValueError(f"a collective among {world} ranks; there is at least 1")
    others, levels = world - 1, (world - 1).bit_length()
    if world == 1:
        return Load(0, 0.0, 0.0, 0.0)
    match collective:
        case Collective.ALL_REDUCE:
            return Load(2 * others, float(2 * others), 2 * others / world, 2 * others / world)
        case Collective.ALL_GATHER:
            return Load(others, float(others), float(others), float(others))
        case Collective.ALL_TO_ALL:
            return Load(others, float(others), 1.0, 1.0)
        case Collective.GATHER | Collective.SCATTER:
            return Load(1, others / world, others / world, float(others))
        case Collective.BROADCAST | Collective.REDUCE:
            return Load(levels, others / world, others / world, float(levels))
        case Collective.TRANSFER:
            return Load(1, 1.0, 1.0, 1.0)
        case Collective.REDUCE_SCATTER:
            return Load(others, float(others), others / world, others / world)
        case Collective.BARRIER:
            return Load(levels, float(levels), 0.0, 0.0)
