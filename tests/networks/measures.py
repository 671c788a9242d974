"""What a network is like: diameter in edges and in server hops, cuts, disjoint paths."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from fabric.simulated.graph import Bools, Floats, Ints, NetworkGraph
from fabric.simulated.measures import distances

HALF_HOP = 0.5  # through a switch, two cables make one hop from server to server


def diameter(graph: NetworkGraph) -> int:
    """Edges of the longest shortest path between hosts; −1 if hosts are parted."""
    longest = distances(graph, np.ones(graph.num_cables)).max()
    return int(longest) if np.isfinite(longest) else -1


def server_hops(graph: NetworkGraph) -> int:
    """The same in hops from server to server, as server-centric networks count them; −1 if hosts are parted."""
    between_servers = (graph.ends < graph.num_hosts).all(axis=1)
    longest = distances(graph, np.where(between_servers, 1.0, HALF_HOP)).max()
    return round(float(longest)) if np.isfinite(longest) else -1


def cut_bps(graph: NetworkGraph, half: Bools) -> float:
    """Rate of the smallest cut that parts the hosts in `half` [num_hosts] from the others, bit/s one way."""
    source, sink = graph.num_nodes, graph.num_nodes + 1
    hosts = np.arange(graph.num_hosts)
    mbit = np.concatenate([np.repeat(np.where(graph.up, graph.rate_bps, 0.0), 2) / 1e6, _feeds(graph)])
    tails = np.concatenate([graph.ends.reshape(-1), np.where(half, source, hosts)])
    heads = np.concatenate([graph.heads, np.where(half, hosts, sink)])
    shape = (graph.num_nodes + 2, graph.num_nodes + 2)
    capacities = coo_array((np.rint(mbit).astype(np.int32), (tails, heads)), shape=shape).tocsr()
    return float(maximum_flow(capacities, source, sink).flow_value) * 1e6


def bisection_bps(graph: NetworkGraph) -> float:
    """The smallest cut of all that part the hosts into halves, bit/s one way: an exact search by branch and bound.

    Every node is on side 0 or 1, half of the hosts on side 1, and a cable counts if its ends differ.
    """
    nodes, cables = graph.num_nodes, np.arange(graph.num_cables)
    first, second = graph.ends.T
    rows = np.concatenate([cables, cables, cables, cables + len(cables), cables + len(cables), cables + len(cables)])
    columns = np.concatenate([first, second, nodes + cables, second, first, nodes + cables])
    signs = np.repeat([-1.0, 1.0, 1.0, -1.0, 1.0, 1.0], len(cables))
    differ = coo_array((signs, (rows, columns)), shape=(2 * len(cables), nodes + len(cables))).tocsr()
    is_host = (np.arange(nodes + len(cables)) < graph.num_hosts).astype(float)[None, :]
    half = graph.num_hosts // 2
    found = milp(
        np.concatenate([np.zeros(nodes), graph.rate_bps / 1e9]),
        constraints=[LinearConstraint(differ, 0, np.inf), LinearConstraint(is_host, half, half)],
        integrality=np.concatenate([np.ones(nodes), np.zeros(len(cables))]),
        bounds=Bounds(0, 1),
    )
    assert found.status == 0, found.message
    return float(found.fun) * 1e9


def lower_half(graph: NetworkGraph) -> Bools:
    """The first half of the hosts: where hosts are numbered by their place, the cut that splits the network's top."""
    return np.arange(graph.num_hosts) < graph.num_hosts // 2


def path_nodes(graph: NetworkGraph, source: int, links: Ints) -> list[int]:
    """Nodes of a path, ends included."""
    return [source, *(int(node) for node in graph.heads[links])]


def _feeds(graph: NetworkGraph) -> Floats:
    """What each host can send at all, Mbit/s: never the smallest cut by itself."""
    total = np.zeros(graph.num_nodes)
    np.add.at(total, graph.ends.reshape(-1), np.repeat(graph.rate_bps, 2) / 1e6)
    return total[: graph.num_hosts] + 1.0
