"""From groups of flows, or a mixed load, to flows on a network: a seed draws starts, pairs and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fabric.network import FLUID, NetworkSpec, Paths
from fabric.simulated.flow_traffic import FlowGroup, FluidTraffic, MixedLoad, PacketTraffic
from fabric.simulated.graph import Ints, NetworkError, NetworkGraph
from fabric.simulated.optical import check_circuits
from fabric.simulated.packet import BITS
from fabric.simulated.placed import built
from fabric.simulated.routing import route
from fabric.simulated.scheduling import parse_scheduler
from fabric.simulated.transports import find_transport

Traffic = PacketTraffic | FluidTraffic
MIXED = ("mixed",)  # the names of a mixed load's groups: packets know no sizes
SHORT_AND_LONG = ("short", "long")


@dataclass(frozen=True, slots=True)
class DrawnFlow:
    """`num_bytes` from host to host from `start_s` on; `group` is its place among the traffic's groups."""

    source: int
    destination: int
    num_bytes: float
    start_s: float
    group: int


def check_traffic(traffic: Traffic, network: NetworkSpec, seed: int) -> None:
    """Whether the network, who serves it and every flow can be. Raises: NetworkError with value and remedy."""
    if (traffic.mixed is None) == (not traffic.groups):
        raise NetworkError("traffic is either groups of flows or a mixed load; give one of them")
    for group in traffic.groups:
        if len(group.destinations) not in (1, len(group.sources)):
            raise NetworkError(
                f"{group.name} has {len(group.sources)} sources and {len(group.destinations)} destinations; give one "
                "for all, or one for each"
            )
    if isinstance(traffic, PacketTraffic):
        if not 0 <= traffic.from_s < traffic.until_s:
            raise NetworkError(f"nothing lies between {traffic.from_s} s and {traffic.until_s} s; end later")
        find_transport(network.transport)
        if network.paths is not Paths.ECMP:
            raise NetworkError(f"packets' paths are hashed, not {network.paths}; use ecmp")
    else:
        parse_scheduler(traffic.scheduler)
        if network.transport != FLUID:
            raise NetworkError(f"fluids have no transport, and {network.transport!r} is one; use {FLUID!r}")
    graph = network_of(network)
    flows = drawn_flows(traffic, graph, seed)
    route(graph, [flow.source for flow in flows], [flow.destination for flow in flows])
    if isinstance(traffic, FluidTraffic) and traffic.circuits is not None:
        if network.paths is not Paths.ECMP:
            raise NetworkError(f"beside circuits packets' paths are hashed, not {network.paths}; use ecmp")
        if traffic.scheduler != "fair":
            raise NetworkError(f"beside circuits packets are shared fairly, not by {traffic.scheduler}; use 'fair'")
        pairs = [(flow.source, flow.destination) for flow in flows]
        check_circuits(traffic.circuits, pairs, [flow.start_s for flow in flows])


def network_of(network: NetworkSpec) -> NetworkGraph:
    """The network with its failures, whose transport need have no law. Raises: NetworkError."""
    return built(network.topology, network.num_failed, network.seed)


def drawn_flows(traffic: Traffic, graph: NetworkGraph, seed: int) -> list[DrawnFlow]:
    """All flows in order of their groups; `seed` draws starts, and the pairs and sizes of a mixed load."""
    rng = np.random.default_rng(seed)
    if traffic.mixed is None:
        return [flow for place, group in enumerate(traffic.groups) for flow in _alike(group, place, rng)]
    flows = list(_mixed(traffic.mixed, graph, rng))
    if isinstance(traffic, PacketTraffic):
        return flows
    is_long = [int(flow.num_bytes > traffic.mixed.short_bytes[1]) for flow in flows]
    parted = [
        DrawnFlow(flow.source, flow.destination, flow.num_bytes, flow.start_s, group)
        for flow, group in zip(flows, is_long, strict=True)
    ]
    return sorted(parted, key=lambda flow: flow.group)


def group_names(traffic: Traffic) -> tuple[str, ...]:
    """What the groups of drawn flows are called."""
    if traffic.mixed is None:
        return tuple(group.name for group in traffic.groups)
    return MIXED if isinstance(traffic, PacketTraffic) else SHORT_AND_LONG


def last_link(graph: NetworkGraph, host: int) -> int:
    """The link of the host's first cable towards it."""
    return int(graph.links[graph.first[host]]) ^ 1


def host_bps(graph: NetworkGraph, host: int) -> float:
    """The rate of that cable."""
    return float(graph.rate_bps[last_link(graph, host) // 2])


def _alike(group: FlowGroup, place: int, rng: np.random.Generator) -> Iterator[DrawnFlow]:
    destinations = group.destinations * (len(group.sources) if len(group.destinations) == 1 else 1)
    for number in range(group.num_times):
        late_s = rng.uniform(0.0, group.jitter_s, len(group.sources))
        for source, destination, late in zip(group.sources, destinations, late_s, strict=True):
            start_s = group.start_s + number * group.every_s + float(late)
            yield DrawnFlow(source, destination, group.num_bytes, start_s, place)


def _mixed(mixed: MixedLoad, graph: NetworkGraph, rng: np.random.Generator) -> Iterator[DrawnFlow]:
    count = mixed.num_flows
    is_short = rng.random(count) < mixed.short_share
    sizes = np.where(is_short, rng.uniform(*mixed.short_bytes, count), rng.uniform(*mixed.long_bytes, count)).round()
    total_bps = mixed.load * graph.num_hosts * host_bps(graph, 0)
    starts = rng.exponential(sizes.mean() * BITS / total_bps, count).cumsum()
    sources = rng.integers(0, graph.num_hosts, count)
    destinations: Ints = (sources + rng.integers(1, graph.num_hosts, count)) % graph.num_hosts
    for source, destination, size, start in zip(sources, destinations, sizes, starts, strict=True):
        yield DrawnFlow(int(source), int(destination), float(size), float(start), 0)
