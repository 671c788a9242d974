"""Hedera: a central scheduler moves large flows to paths where they fit, by their estimated demands.

Paper: Al-Fares et al., Hedera: Dynamic Flow Scheduling for Data Center Networks, NSDI 2010, sections 4.2 and 4.3.
Demands: senders split their NIC evenly over their flows, receivers cap what exceeds theirs, until nothing
changes. Global First Fit: each flow of at least 10 % of a NIC takes the first path with room for its demand; those
that fit nowhere keep their hashed path.

Also here: `least_loaded`, which takes for each flow the path whose fullest link is least full (FiConn's traffic-aware
routing chooses so among its detours).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fabric.simulated.graph import Bools, Floats, Ints, NetworkGraph
from fabric.simulated.routing import route

LARGE = 0.1  # of a NIC
ROUNDS = 100
TOO_SMALL = 1e-9


def estimate_demands(sources: Ints, destinations: Ints) -> Floats:
    """The max-min demands of flows, as parts of a NIC's rate, if the network between the hosts had no limit."""
    demand = np.zeros(len(sources))
    is_limited = np.zeros(len(sources), bool)  # by its receiver
    for _ in range(ROUNDS):
        before = demand.copy()
        for source in np.unique(sources):
            own = np.flatnonzero(sources == source)
            free = own[~is_limited[own]]
            if len(free):
                demand[free] = max(1.0 - demand[own[is_limited[own]]].sum(), 0.0) / len(free)
        for destination in np.unique(destinations):
            own = np.flatnonzero(destinations == destination)
            if demand[own].sum() > 1.0 + TOO_SMALL:
                _cap(own, demand, is_limited)
        if np.abs(demand - before).max(initial=0.0) < TOO_SMALL:
            break
    return demand


def _cap(own: Ints, demand: Floats, is_limited: Bools) -> None:
    """Share a receiver's NIC max-min fairly among its flows; those that want more are limited by it."""
    left, waiting = 1.0, own[np.argsort(demand[own], kind="stable")]
    for place, flow in enumerate(waiting):
        share = left / (len(waiting) - place)
        is_limited[flow] = demand[flow] >= share - TOO_SMALL
        demand[flow] = min(demand[flow], share)
        left -= demand[flow]


def global_first_fit(
    graph: NetworkGraph, sources: Sequence[int] | Ints, destinations: Sequence[int] | Ints, num_paths: int
) -> Ints:
    """Routing choices for flows, of the `num_paths` first ones per flow; hashed ones where a demand fits nowhere."""
    tails, heads = np.asarray(sources, np.int64), np.asarray(destinations, np.int64)
    nic_bps = graph.link_rate_bps[graph.links[graph.first[tails]]].max(initial=0.0)
    demand = estimate_demands(tails, heads) * nic_bps
    candidates = [route(graph, tails, heads, _choices(len(tails), path)) for path in range(num_paths)]
    room, picked = graph.link_rate_bps, _choices(len(tails), 0)
    for flow in np.argsort(-demand, kind="stable"):
        if demand[flow] < LARGE * nic_bps:
            continue
        for path, paths in enumerate(candidates):
            if (room[paths[flow]] >= demand[flow] * (1.0 - TOO_SMALL)).all():
                room[paths[flow]] -= demand[flow]
                picked[flow] = _choices(len(tails), path)[flow]
                break
    return picked


def least_loaded(
    graph: NetworkGraph, sources: Sequence[int] | Ints, destinations: Sequence[int] | Ints, num_paths: int
) -> Ints:
    """Routing choices for flows, one after the other: the path whose most used link has the fewest flows."""
    tails, heads = np.asarray(sources, np.int64), np.asarray(destinations, np.int64)
    candidates = [route(graph, tails, heads, np.full(len(tails), path)) for path in range(num_paths)]
    load = np.zeros(2 * graph.num_cables, np.int64)
    picked = np.zeros(len(tails), np.int64)
    for flow in range(len(tails)):
        best = min(range(num_paths), key=lambda path: (load[candidates[path][flow]].max(), len(candidates[path][flow])))
        load[candidates[best][flow]] += 1
        picked[flow] = best
    return picked


def _choices(num_flows: int, path: int) -> Ints:
    """Hashes of flow and path: path 0 is where ECMP would have put the flow."""
    return np.arange(num_flows, dtype=np.int64) + path * num_flows
