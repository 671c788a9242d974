"""Flows under a scheduler: who is served first, and at which rate, whenever a flow joins, ends or is demoted.

A policy looks at the flows under way and ranks them. Ranks share the links strictly: the flows of a rank are filled
max-min fairly into what better ranks leave. Varys gives rates instead (MADD), and what is left is filled likewise.

The model is a fluid at the granularity of flows: a packet of a worse rank never delays one of a better rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fabric.simulated.compiled import entry_point
from fabric.simulated.graph import Floats, Ints, NetworkError, NetworkGraph, PathSet
from fabric.simulated.max_min import Shares, choose, put, repair, shares_of
from fabric.simulated.routing import route

BITS = 8.0
DONE = 1e-9  # of a flow's bytes: what rounding leaves
SOONEST_S = 1e-12


@dataclass(frozen=True, slots=True)
class ScheduledFlow:
    """`num_bytes` from host to host from `start_s` on. `coflow` groups flows that count together.

    `priority` is what the sender knows: for training, the place of the gradient in the next forward pass.
    """

    source: int
    destination: int
    num_bytes: float
    start_s: float = 0.0
    coflow: int = 0
    priority: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class UnderWay:
    """The flows that a policy may rank; arrays over them."""

    flows: Ints  # indices into all flows
    left_bits: Floats
    sent_bits: Floats
    began_s: Floats  # when the flow's coflow did
    coflow: Ints
    priority: Ints
    paths: PathSet
    capacity_bps: Floats  # [links]


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """A rank per flow (lower first), and rates promised beforehand."""

    ranks: Ints
    promised_bps: Floats | None = None


class FlowPolicy(Protocol):
    """Decides; the engine acts."""

    @property
    def name(self) -> str:
        """The policy's name in tables."""

    def decide(self, under_way: UnderWay) -> Decision:
        """The rank of each flow under way, the best first; or rates that are promised."""

    def next_change_s(self, under_way: UnderWay, rates_bps: Floats) -> float:
        """When, from now on and at these rates, the policy would decide otherwise; inf if never by itself."""
        ...


def schedule_flows(
    graph: NetworkGraph, flows: Sequence[ScheduledFlow], policy: FlowPolicy, *, choices: Ints | None = None
) -> Floats:
    """Run all flows to their end under `policy`, and return when they ended, s [flows].

    NetworkError for flows that cannot be.
    """
    if any(flow.num_bytes <= 0.0 or flow.start_s < 0.0 for flow in flows):
        raise NetworkError("a flow of no bytes, or from before 0 s, cannot be scheduled; leave it out")
    paths = route(graph, [flow.source for flow in flows], [flow.destination for flow in flows], choices)
    size = np.array([flow.num_bytes * BITS for flow in flows])
    starts = np.array([flow.start_s for flow in flows])
    coflow, priority = np.array([flow.coflow for flow in flows]), np.array([flow.priority for flow in flows])
    _, members = np.unique(coflow, return_inverse=True)
    firsts = np.full(members.max(initial=-1) + 1, np.inf)
    np.minimum.at(firsts, members, starts)
    moved, ends, capacity = np.zeros(len(flows)), np.full(len(flows), np.nan), graph.link_rate_bps
    now = float(starts.min(initial=0.0))
    while np.isnan(ends).any():
        active = np.flatnonzero((starts <= now + SOONEST_S) & np.isnan(ends))
        upcoming = float(np.min(starts[starts > now + SOONEST_S], initial=np.inf))
        if not len(active):
            now = upcoming
            continue
        own = PathSet.of([paths[flow].tolist() for flow in active.tolist()])
        left = size[active] - moved[active]
        under_way = UnderWay(
            active, left, moved[active], firsts[members[active]], coflow[active], priority[active], own, capacity
        )
        rates = allocate(own, capacity, policy.decide(under_way))
        step = min(upcoming - now, policy.next_change_s(under_way, rates))
        serving = rates > 0.0
        step = min(step, float((left[serving] / rates[serving]).min()))
        moved[active] += rates * step
        now += step
        over = active[size[active] - moved[active] <= DONE * size[active]]
        ends[over] = now
    assert np.allclose(moved, size, rtol=1e-6), "the scheduler lost bits"
    return ends


def allocate(paths: PathSet, capacity_bps: Floats, decision: Decision) -> Floats:
    """Rates of all flows, bit/s: what was promised, then rank by rank what is left, max-min fairly."""
    promised = np.zeros(len(paths)) if decision.promised_bps is None else decision.promised_bps
    room = capacity_bps - np.bincount(paths.links, np.repeat(promised, np.diff(paths.offsets)), len(capacity_bps))
    rates = promised.copy()
    for rank in np.unique(decision.ranks):
        chosen = np.flatnonzero(decision.ranks == rank)
        own = PathSet.of([paths[flow].tolist() for flow in chosen.tolist()])
        added = max_min_rates(own, np.maximum(room, 0.0))
        rates[chosen] += added
        room -= np.bincount(own.links, np.repeat(added, np.diff(own.offsets)), len(room))
    return rates


def max_min_rates(paths: PathSet, capacity_bps: Floats) -> Floats:
    """Max-min fair rates of flows on `paths`, bit/s."""
    shares = shares_of(paths.offsets, paths.links, np.ones(len(paths)), capacity_bps)
    _fill_all(shares)
    return shares.rate


@entry_point(allocates=False)
def _fill_all(shares: Shares) -> int:
    num_chosen = 0
    for flow in range(len(shares.weight)):
        put(shares, flow)
        num_chosen = choose(shares, flow, num_chosen)
    return repair(shares, num_chosen)
