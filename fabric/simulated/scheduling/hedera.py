"""Hedera: a central scheduler moves large flows to paths where they fit, by their estimated demands.

Paper: Al-Fares et al., Hedera: Dynamic Flow Scheduling for Data Center Networks, NSDI 2010, sections 4.2 and 4.3.
Demands: senders split their NIC evenly over their flows, receivers cap what exceeds theirs, until nothing
changes. Global First Fit: each flow of at least 10 % of a NIC takes the first of all its paths that has room for its
demand; those that fit nowhere keep their hashed path.

Also here: `least_loaded`, which takes for each flow the path whose fullest link is least full (FiConn's traffic-aware
routing chooses so among its detours).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fabric.simulated.graph import Bools, Floats, Ints, NetworkGraph
from fabric.simulated.routing import all_paths

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


def global_first_fit(graph: NetworkGraph, sources: Sequence[int] | Ints, destinations: Sequence[int] | Ints) -> Ints:
    """Routing choices for flows, the largest demands first; the hashed ones where a demand fits nowhere."""
    tails, heads = np.asarray(sources, np.int64), np.asarray(destinations, np.int64)
    nic_bps = graph.link_rate_bps[graph.links[graph.first[tails]]].max(initial=0.0)
    demand = estimate_demands(tails, heads) * nic_bps
    paths, choices = all_paths(graph, tails, heads)
    room, picked = graph.link_rate_bps, np.arange(len(tails))
    for flow in np.argsort(-demand, kind="stable"):
        if demand[flow] < LARGE * nic_bps:
            continue
        for place, choice in enumerate(choices):
            links = paths[place * len(tails) + flow]
            if (room[links] >= demand[flow] * (1.0 - TOO_SMALL)).all():
                room[links] -= demand[flow]
                picked[flow] = choice
                break
    return picked


def least_loaded(graph: NetworkGraph, sources: Sequence[int] | Ints, destinations: Sequence[int] | Ints) -> Ints:
    """Routing choices for flows, one after the other: the path whose most used link has the fewest flows."""
    tails, heads = np.asarray(sources, np.int64), np.asarray(destinations, np.int64)
    paths, choices = all_paths(graph, tails, heads)
    load = np.zeros(2 * graph.num_cables, np.int64)
    picked = np.zeros(len(tails), np.int64)
    for flow in range(len(tails)):
        own = [paths[place * len(tails) + flow] for place in range(len(choices))]
        best = min(range(len(choices)), key=lambda place: (load[own[place]].max(), len(own[place])))
        load[own[best]] += 1
        picked[flow] = choices[best]
    return picked
