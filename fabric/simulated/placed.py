"""A network as asked for, with jobs placed on it, and what a round of a job's flows asks of its links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from fabric.network import NetworkSpec, Paths
from fabric.simulated.graph import Floats, Ints, NetworkError, NetworkGraph, PathSet
from fabric.simulated.laws import TransportLaw, law_of
from fabric.simulated.routing import Algorithmic, all_paths, route
from fabric.simulated.scheduling.hedera import global_first_fit, least_loaded
from fabric.simulated.topologies import parse_topology
from fabric.simulated.traffic import FlowRound, place_jobs
from fabric.simulated.transports import TRANSPORTS

BITS = 8.0


@dataclass(frozen=True, slots=True, eq=False)
class RoundLoad:
    """A round of flows: `weights` [links] are its flows per link in units of the largest, which has `largest_bits` in
    each of `repeats` repeats; `wait_s` is what all repeats wait for delays along the longest path."""

    weights: Floats
    largest_bits: float
    repeats: int
    wait_s: float


@dataclass(slots=True, eq=False)
class PlacedJob:
    """A job's ranks on `hosts` of a network; routes of a pattern of flows are found once."""

    graph: NetworkGraph
    hosts: tuple[int, ...]
    law: TransportLaw
    hashes: bool = True  # whether flows of one pair may take different paths
    paths: Paths = Paths.ECMP
    _routes: dict[tuple[bytes, bytes], tuple[PathSet, float]] = field(default_factory=dict)

    def load(self, own: FlowRound, alpha_s: float = 0.0) -> RoundLoad:
        """What `own` asks of the links; `alpha_s` is the software's part of each repeat."""
        paths, delay_s = self._route(own.sources, own.destinations)
        largest = float(own.num_bytes.max())
        each = np.repeat(own.num_bytes / largest, np.diff(paths.offsets))
        weights: Floats = np.bincount(paths.links, each, 2 * self.graph.num_cables).astype(np.float64)
        return RoundLoad(weights, largest * BITS, own.repeats, own.repeats * (alpha_s + delay_s + self.law.latency_s))

    def _route(self, sources: Ints, destinations: Ints) -> tuple[PathSet, float]:
        key = sources.tobytes(), destinations.tobytes()
        # a job sends in the same few patterns again and again
        if key not in self._routes:
            hosts = np.asarray(self.hosts)
            choices = chosen_paths(self.graph, self.paths, hosts[sources], hosts[destinations])
            if choices is None and not self.hashes:
                choices = np.zeros(len(sources), np.int64)
            paths = route(self.graph, hosts[sources], hosts[destinations], choices)
            delays = np.add.reduceat(np.repeat(self.graph.delay_s, 2)[paths.links], paths.offsets[:-1])
            self._routes[key] = paths, float(delays.max())
        return self._routes[key]


@dataclass(frozen=True, slots=True, eq=False)
class PlacedNetwork:
    """A network with its jobs; `host_bps` is the rate of the slowest cable of a host that is used."""

    graph: NetworkGraph
    jobs: tuple[PlacedJob, ...]
    law: TransportLaw
    host_bps: float


def place_network(spec: NetworkSpec, num_ranks: int, num_jobs: int = 1) -> PlacedNetwork:
    """Build the network and place `num_jobs` jobs of `num_ranks` ranks each.

    Raises: NetworkError for a topology or transport that cannot be, too few hosts, hosts parted by failures, a
    transport without a law, or one whose paths cannot be chosen.
    """
    graph = built(spec.topology, spec.num_failed, spec.seed)
    placed = place_jobs(graph, [num_ranks] * (num_jobs if spec.own_hosts else 1), spec.placement, spec.seed)
    hosts = placed if spec.own_hosts else placed * num_jobs
    for own in dict.fromkeys(hosts):
        _check_joined(graph, own)
    rates, delay_s = _of_hosts(graph, sorted({host for own in hosts for host in own}))
    law = law_of(spec.transport, float(rates.min()), delay_s)
    hashes = spec.transport not in TRANSPORTS or TRANSPORTS[spec.transport].is_routed
    if spec.paths is not Paths.ECMP and not hashes:
        raise NetworkError(f"{spec.transport} sends a pair's flows one way, so {spec.paths} has no choice; use ecmp")
    jobs = tuple(PlacedJob(graph, own, law, hashes, spec.paths) for own in hosts)
    return PlacedNetwork(graph, jobs, law, float(rates.min()))


@cache
def built(topology: str, num_failed: int = 0, seed: int = 1) -> NetworkGraph:
    """The topology of this text, less cables drawn by `seed`, none of them a host's last one. Raises: NetworkError."""
    graph = parse_topology(topology).build()
    left = np.bincount(graph.ends.reshape(-1), minlength=graph.num_nodes)
    failed: list[int] = []
    # a host without a cable would be lost, which is no failure of the network
    for cable in np.random.default_rng(seed).permutation(graph.num_cables).tolist():
        ends = graph.ends[cable]
        if len(failed) < num_failed and (left[ends[ends < graph.num_hosts]] > 1).all():
            failed.append(cable)
            left[ends] -= 1
    if len(failed) < num_failed or num_failed < 0:
        raise NetworkError(
            f"{num_failed} cables cannot fail: {graph.name} has {len(failed)} that are no host's last one; "
            f"use 0 to {len(failed)}"
        )
    return graph.without(failed) if failed else graph


def chosen_paths(graph: NetworkGraph, paths: Paths, sources: Ints, destinations: Ints) -> Ints | None:
    """Routing choices of flows that are sent at once; None where they are hashed."""
    if paths is Paths.FIRST_FIT:
        return global_first_fit(graph, sources, destinations)
    if paths is Paths.LEAST_LOADED:
        return least_loaded(graph, sources, destinations)
    return shortest_choices(graph, sources, destinations) if is_server_centric(graph) else None


def is_server_centric(graph: NetworkGraph) -> bool:
    """Whether servers forward: their algorithms offer detours beside the shortest route."""
    degree = np.bincount(graph.ends.reshape(-1), minlength=graph.num_nodes)
    return isinstance(graph.routing, Algorithmic) and bool((degree[: graph.num_hosts] > 1).any())


def shortest_choices(graph: NetworkGraph, sources: Ints, destinations: Ints) -> Ints:
    """The routing choice of each flow that gives it the shortest of its routes; of equals in turn.

    Parallel routes are for a server that has its ports to itself. In a collective all servers send at once, and a
    detour takes the place of somebody else's shortest route.
    """
    paths, choices = all_paths(graph, sources, destinations)
    lengths = np.diff(paths.offsets).reshape(len(choices), len(sources))
    turned = (np.arange(len(sources))[None, :] + np.arange(len(choices))[:, None]) % len(choices)
    best = np.take_along_axis(lengths, turned, axis=0).argmin(axis=0)
    chosen: Ints = choices[np.take_along_axis(turned, best[None, :], axis=0)[0]]
    return chosen


def _check_joined(graph: NetworkGraph, hosts: Sequence[int]) -> None:
    """Whether every host reaches the next one and back; then all reach all. Raises: NetworkError."""
    if len(hosts) > 1:
        own = np.asarray(hosts)
        route(graph, own, np.roll(own, -1))


def _of_hosts(graph: NetworkGraph, hosts: Sequence[int]) -> tuple[Floats, float]:
    """Rates of the cables of `hosts`, and the longest delay among them."""
    used = np.isin(graph.ends, np.asarray(hosts)).any(axis=1) & graph.up
    return graph.rate_bps[used], float(graph.delay_s[used].max())
