"""What jobs send: rounds of flows between ranks, and where the ranks are.

A round's flows start together; a job's next round starts when the last flow of the round before has arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fabric.collectives import Collective, flows_of
from fabric.network import HostChoice
from fabric.simulated.graph import Floats, Ints, NetworkError, NetworkGraph


@dataclass(frozen=True, slots=True, eq=False)
class FlowRound:
    """Flows from rank `sources[i]` to rank `destinations[i]` of `num_bytes[i]` bytes, done `repeats` times."""

    sources: Ints
    destinations: Ints
    num_bytes: Floats
    repeats: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class TrafficJob:
    """Ranks on `hosts` (rank r is on hosts[r]) that go through `rounds`, from `start_s` on.

    `round_s` is what each round costs before its flows start (the α of the software).
    """

    hosts: tuple[int, ...]
    rounds: tuple[FlowRound, ...]
    start_s: float = 0.0
    round_s: float = 0.0


def place_jobs(graph: NetworkGraph, sizes: Sequence[int], choice: HostChoice, seed: int = 0) -> list[tuple[int, ...]]:
    """Hosts for jobs of `sizes` ranks, no host twice. NetworkError if the network has too few.

    Hosts near each other have near numbers in every topology; so SPREAD deals them out with the widest stride.
    """
    wanted = sum(sizes)
    if wanted > graph.num_hosts or min(sizes, default=1) < 1:
        raise NetworkError(
            f"jobs of {list(sizes)} ranks do not fit on the {graph.num_hosts} hosts of {graph.name}; "
            "use a larger network or smaller jobs, each of 1 rank or more"
        )
    if choice is HostChoice.RANDOM:
        order = np.random.default_rng(seed).permutation(graph.num_hosts)
    elif choice is HostChoice.SPREAD:
        order = np.argsort(np.arange(graph.num_hosts) % max(graph.num_hosts // max(sizes), 1), kind="stable")
    else:
        order = np.arange(graph.num_hosts)
    ends = np.cumsum(sizes)
    return [tuple(int(host) for host in order[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def collective_rounds(collective: Collective, world: int, num_bytes: float) -> tuple[FlowRound, ...]:
    """The rounds of the table of collectives (`fabric.collectives`) as arrays. Raises: ValueError as `flows_of`."""
    return tuple(made for own in flows_of(collective, world, num_bytes) for made in flow_round(own.flows, own.times))


def flow_round(flows: Iterable[tuple[int, int, float]], repeats: int = 1) -> Iterator[FlowRound]:
    """The round of flows (from rank, to rank, bytes); none without flows."""
    table = np.array(list(flows), np.float64).reshape(-1, 3)
    if len(table):
        yield FlowRound(table[:, 0].astype(np.int64), table[:, 1].astype(np.int64), table[:, 2], repeats)
