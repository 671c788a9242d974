"""What jobs send: rounds of flows between ranks, and where the ranks are.

A round's flows start together; a job's next round starts when the last flow of the round before has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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


def _round(pairs: Sequence[tuple[int, int]], num_bytes: float, repeats: int = 1) -> FlowRound:
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    return FlowRound(ends[:, 0], ends[:, 1], np.full(len(pairs), float(num_bytes)), repeats)


def ring_all_reduce(num_ranks: int, num_bytes: float) -> tuple[FlowRound, ...]:
    """2(N−1) equal rounds of n/N bytes to the next rank (Patarasuk and Yuan, JPDC 2009)."""
    if num_ranks == 1:
        return ()
    shift = [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    return (_round(shift, num_bytes / num_ranks, 2 * (num_ranks - 1)),)


def tree_all_reduce(num_ranks: int, num_bytes: float) -> tuple[FlowRound, ...]:
    """A binomial tree: ⌈log₂ N⌉ rounds of the whole towards rank 0, and as many back."""
    up = []
    stride = 1
    while stride < num_ranks:
        up.append([(rank, rank - stride) for rank in range(stride, num_ranks, 2 * stride)])
        stride *= 2
    down = [[(head, tail) for tail, head in pairs] for pairs in reversed(up)]
    return tuple(_round(pairs, num_bytes) for pairs in up + down)


def halving_doubling(num_ranks: int, num_bytes: float) -> tuple[FlowRound, ...]:
    """Recursive halving then doubling, n/2, n/4, … bytes (Thakur et al., IJHPCA 2005); a power of two of ranks."""
    if num_ranks & (num_ranks - 1):
        raise NetworkError(f"halving-doubling pairs all ranks, not {num_ranks}; use a power of two, or a ring")
    halving = []
    distance, part = num_ranks // 2, num_bytes / 2
    while distance:
        halving.append(_round([(rank, rank ^ distance) for rank in range(num_ranks)], part))
        distance, part = distance // 2, part / 2
    return (*halving, *reversed(halving))


def hierarchical_all_reduce(num_ranks: int, num_bytes: float, group: int) -> tuple[FlowRound, ...]:
    """Rings inside groups of `group` ranks, a ring per position across groups, rings inside again.

    Reduce-scatter inside, all-reduce of n/group across, all-gather inside (Ueno and Yokota, CCGrid 2019).
    """
    if group < 1 or num_ranks % group:
        raise NetworkError(f"{num_ranks} ranks do not form groups of {group}; use a divisor of {num_ranks}")
    inside = [(rank, rank - rank % group + (rank + 1) % group) for rank in range(num_ranks)]
    scatter = (_round(inside, num_bytes / group, group - 1),) if group > 1 else ()
    num_groups = num_ranks // group
    if num_groups == 1:
        return scatter + scatter
    across = [(rank, (rank + group) % num_ranks) for rank in range(num_ranks)]
    return (*scatter, _round(across, num_bytes / group / num_groups, 2 * (num_groups - 1)), *scatter)


def all_to_all(num_ranks: int, num_bytes: float) -> tuple[FlowRound, ...]:
    """Every rank sends `num_bytes` to every other, in N − 1 shifts."""
    shifts = ([(rank, (rank + by) % num_ranks) for rank in range(num_ranks)] for by in range(1, num_ranks))
    return tuple(_round(pairs, num_bytes) for pairs in shifts)


def parameter_servers(num_workers: int, num_servers: int, num_bytes: float) -> tuple[FlowRound, ...]:
    """Workers (the first ranks) push n/S bytes to each of S servers (the last), then pull as much."""
    if num_servers < 1:
        raise NetworkError(f"{num_servers} servers hold nothing; use 1 or more")
    push = [(worker, num_workers + server) for worker in range(num_workers) for server in range(num_servers)]
    pull = [(server, worker) for worker, server in push]
    return _round(push, num_bytes / num_servers), _round(pull, num_bytes / num_servers)
