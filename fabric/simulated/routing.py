"""Routes: which links a flow takes from host to host.

`EqualCost` follows shortest paths and hashes a flow's choice at every node (ECMP, RFC 2992). `Algorithmic` asks the
topology's own algorithm. Around failures an algorithmic route that is cut is replaced by an equal-cost one.

Differs from the papers: their own fault-tolerant variants (BCube's probing, DCell's DFR) are not modelled; a cut route
takes the shortest path that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fabric.simulated.compiled import entry_point, inlined
from fabric.simulated.graph import Bools, Ints, NetworkError, NetworkGraph, PathSet

UNREACHED = -1


def route(
    graph: NetworkGraph,
    sources: Sequence[int] | Ints,
    destinations: Sequence[int] | Ints,
    choices: Sequence[int] | Ints | None = None,
) -> PathSet:
    """Paths of flows from `sources` to `destinations` (hosts) by the network's own routing.

    `choices` are what a switch hashes, one number per flow (default: the flow's index); below 0 they number a pair's
    paths. NetworkError names a host that is none, a flow to itself, or hosts that failures have parted.
    """
    tails, heads = np.asarray(sources, np.int64), np.asarray(destinations, np.int64)
    wrong = np.flatnonzero((tails < 0) | (heads < 0) | (np.maximum(tails, heads) >= graph.num_hosts))
    if len(wrong):
        pair = int(tails[wrong[0]]), int(heads[wrong[0]])
        raise NetworkError(f"flow {pair} is outside hosts 0 to {graph.num_hosts - 1} of {graph.name}; use a larger one")
    if (tails == heads).any():
        raise NetworkError(f"host {tails[tails == heads][0]} sends to itself, which takes no network; drop that flow")
    picked = np.arange(len(tails)) if choices is None else np.asarray(choices)
    return graph.routing.paths(graph, tails, heads, picked.astype(np.int64))


def all_paths(graph: NetworkGraph, sources: Ints, destinations: Ints) -> tuple[PathSet, Ints]:
    """Every path of every flow, path p of flow f at p·flows + f, and the choices that give them [paths per flow].

    A flow with fewer paths than another has some of them several times.
    """
    choices = -1 - np.arange(graph.routing.num_paths(graph, sources, destinations), dtype=np.int64)
    tails, heads = (np.tile(side, len(choices)) for side in (sources, destinations))
    return route(graph, tails, heads, np.repeat(choices, len(sources))), choices


@dataclass(frozen=True, slots=True)
class EqualCost:
    """Shortest paths; where several links are equally short, a hash of flow and node picks one."""

    def paths(self, graph: NetworkGraph, sources: Ints, destinations: Ints, choices: Ints) -> PathSet:
        """Flows are worked off by destination, each of which is explored once. Raises: NetworkError."""
        offsets, links, _ = self._found(graph, sources, destinations, choices)
        return PathSet(offsets, links)

    def num_paths(self, graph: NetworkGraph, sources: Ints, destinations: Ints) -> int:
        """All shortest ones. Raises: NetworkError."""
        return self._found(graph, sources, destinations, np.full(len(sources), -1))[2]

    def _found(self, graph: NetworkGraph, sources: Ints, destinations: Ints, choices: Ints) -> tuple[Ints, Ints, int]:
        order = np.argsort(destinations, kind="stable")
        arrays = (graph.first, graph.neighbours, graph.links, graph.up)
        offsets, links, cut, most = _equal_cost(*arrays, sources, destinations, choices, order)
        if cut >= 0:
            raise NetworkError(
                f"no path is left from host {sources[cut]} to host {destinations[cut]} of {graph.name}; "
                "fail fewer cables or switches, or place the job on other hosts"
            )
        return offsets, links, most


NodePath = Callable[[int, int, int], list[int]]


@dataclass(frozen=True, slots=True)
class Algorithmic:
    """The topology's algorithm `nodes_of(source, destination, choice)` gives the nodes of a path, ends included."""

    nodes_of: NodePath
    num_choices: int

    def paths(self, graph: NetworkGraph, sources: Ints, destinations: Ints, choices: Ints) -> PathSet:
        """Each pair and choice is routed once; a path over a failed cable is replaced by a shortest one. Raises:
        NetworkError."""
        known: dict[tuple[int, int, int], list[int]] = {}
        links_of = {(int(a), int(b)): 2 * c for c, (a, b) in enumerate(graph.ends)}
        links_of |= {(b, a): link + 1 for (a, b), link in links_of.items()}
        choices = np.where(choices < 0, -1 - choices, choices)
        routes = []
        for source, destination, choice in zip(
            sources.tolist(), destinations.tolist(), (choices % self.num_choices).tolist(), strict=True
        ):
            key = (source, destination, choice)
            if key not in known:
                nodes = self.nodes_of(*key)
                links = [links_of[hop] for hop in pairwise(nodes)]
                known[key] = links if graph.up[np.asarray(links) // 2].all() else _detour(graph, *key)
            routes.append(known[key])
        return PathSet.of(routes)

    def num_paths(self, graph: NetworkGraph, sources: Ints, destinations: Ints) -> int:
        """As many as the algorithm tells apart."""
        return self.num_choices


def _detour(graph: NetworkGraph, source: int, destination: int, choice: int) -> list[int]:
    one = EqualCost().paths(graph, np.array([source]), np.array([destination]), np.array([choice]))
    return [int(link) for link in one[0]]


@inlined
def mixed(number: int, node: int) -> int:
    """A well-mixed 63-bit hash of two integers (the finaliser of splitmix64)."""
    state = np.uint64(number) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(node) * np.uint64(0xD1B54A32D192ED03)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((state ^ (state >> np.uint64(31))) >> np.uint64(1))  # type: ignore[return-value]


@inlined
def explore(
    first: Ints, neighbours: Ints, links: Ints, up: Bools, goal: int, distance: Ints, ways: Ints, queue: Ints
) -> None:
    """Fill `distance` with the edges from every node to `goal` over cables that are up, UNREACHED where none lead, and
    `ways` with how many shortest paths there are."""
    distance[:] = UNREACHED
    distance[goal], ways[goal] = 0, 1
    queue[0] = goal
    head, tail = 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        for place in range(first[node], first[node + 1]):
            other = neighbours[place]
            if not up[links[place] >> 1]:
                continue
            if distance[other] == UNREACHED:
                distance[other], ways[other] = distance[node] + 1, 0
                queue[tail] = other
                tail += 1
            if distance[other] == distance[node] + 1:
                ways[other] += ways[node]


@inlined
def next_link(
    first: Ints, neighbours: Ints, links: Ints, up: Bools, node: int, distance: Ints, ways: Ints, choice: int, left: int
) -> tuple[int, int]:
    """The place (in `links`) of one of the links that lead closer: hashed, or below 0 that of path number `left` from
    here; and the path's number from there on."""
    count = 0
    for place in range(first[node], first[node + 1]):
        if up[links[place] >> 1] and distance[neighbours[place]] == distance[node] - 1:
            count += 1
    wanted = mixed(choice, node) % count if choice >= 0 else left
    for place in range(first[node], first[node + 1]):
        if up[links[place] >> 1] and distance[neighbours[place]] == distance[node] - 1:
            passed = 1 if choice >= 0 else ways[neighbours[place]]
            if wanted < passed:
                return place, wanted
            wanted -= passed
    return -1, wanted


@entry_point(allocates=True)
def _equal_cost(
    first: Ints,
    neighbours: Ints,
    links: Ints,
    up: Bools,
    sources: Ints,
    destinations: Ints,
    choices: Ints,
    order: Ints,
) -> tuple[Ints, Ints, int, int]:
    """Offsets and links of all paths, the first flow without one (−1: none), and how many paths a pair has at most.
    `order` sorts by destination.

    Two passes over the destinations: lengths first, so that the paths can be written where they belong.
    """
    num_flows, num_nodes, most = len(sources), len(first) - 1, 0
    distance, ways, queue = np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64), np.empty(num_nodes, np.int64)
    offsets = np.zeros(num_flows + 1, np.int64)
    taken = np.empty(0, np.int64)
    for filling in range(2):
        goal = UNREACHED
        for flow in order:
            if destinations[flow] != goal:
                goal = destinations[flow]
                explore(first, neighbours, links, up, goal, distance, ways, queue)
            if distance[sources[flow]] == UNREACHED:
                return offsets, taken, flow, most
            if filling == 0:
                offsets[flow + 1] = distance[sources[flow]]
                continue
            node, write, choice = sources[flow], offsets[flow], choices[flow]
            most = max(most, ways[node])
            left = (-1 - choice) % ways[node]
            while node != goal:
                place, left = next_link(first, neighbours, links, up, node, distance, ways, choice, left)
                taken[write] = links[place]
                node = neighbours[place]
                write += 1
        if filling == 0:
            offsets = offsets.cumsum()
            taken = np.empty(offsets[-1], np.int64)
    return offsets, taken, -1, most
