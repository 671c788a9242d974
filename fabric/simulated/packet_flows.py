"""From what is asked of the packet engine to flows on a network: groups one by one, a mixed load drawn by a seed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fabric.network import NetworkSpec
from fabric.simulated.graph import Ints, NetworkError, NetworkGraph
from fabric.simulated.packet import BITS, PacketFlow
from fabric.simulated.packet_traffic import FlowGroup, MixedLoad, PacketTraffic
from fabric.simulated.placed import built
from fabric.simulated.routing import route
from fabric.simulated.transports import find_transport


def check_traffic(traffic: PacketTraffic, network: NetworkSpec, seed: int) -> None:
    """Whether the network, the transport and every flow can be. Raises: NetworkError with value and remedy."""
    if (traffic.mixed is None) == (not traffic.groups):
        raise NetworkError("traffic is either groups of flows or a mixed load; give one of them")
    if not 0 <= traffic.from_s < traffic.until_s:
        raise NetworkError(f"nothing lies between {traffic.from_s} s and {traffic.until_s} s; end later")
    for group in traffic.groups:
        if len(group.destinations) not in (1, len(group.sources)):
            raise NetworkError(
                f"{group.name} has {len(group.sources)} sources and {len(group.destinations)} destinations; give one "
                "for all, or one for each"
            )
    graph = network_of(network)
    flows = flows_of(traffic, network.transport, graph, seed)
    route(graph, [flow.source for flow in flows], [flow.destination for flow in flows])


def network_of(network: NetworkSpec) -> NetworkGraph:
    """The network with its failures, whose transport need have no law. Raises: NetworkError."""
    find_transport(network.transport)
    return built(network.topology, network.num_failed, network.seed)


def flows_of(traffic: PacketTraffic, transport: str, graph: NetworkGraph, seed: int) -> list[PacketFlow]:
    """All flows in order of their groups; `seed` draws starts, and the pairs and sizes of a mixed load."""
    rng = np.random.default_rng(seed)
    if traffic.mixed is not None:
        return _mixed(traffic.mixed, transport, graph, rng)
    return [flow for group in traffic.groups for flow in _alike(group, transport, rng)]


def last_link(graph: NetworkGraph, host: int) -> int:
    """The link of the host's first cable towards it."""
    return int(graph.links[graph.first[host]]) ^ 1


def host_bps(graph: NetworkGraph, host: int) -> float:
    """The rate of that cable."""
    return float(graph.rate_bps[last_link(graph, host) // 2])


def _alike(group: FlowGroup, transport: str, rng: np.random.Generator) -> Iterator[PacketFlow]:
    destinations = group.destinations * (len(group.sources) if len(group.destinations) == 1 else 1)
    for number in range(group.num_times):
        late_s = rng.uniform(0.0, group.jitter_s, len(group.sources))
        for source, destination, late in zip(group.sources, destinations, late_s, strict=True):
            start_s = group.start_s + number * group.every_s + float(late)
            yield PacketFlow(source, destination, group.num_bytes, transport, start_s)


def _mixed(mixed: MixedLoad, transport: str, graph: NetworkGraph, rng: np.random.Generator) -> list[PacketFlow]:
    count = mixed.num_flows
    is_short = rng.random(count) < mixed.short_share
    sizes = np.where(is_short, rng.uniform(*mixed.short_bytes, count), rng.uniform(*mixed.long_bytes, count)).round()
    total_bps = mixed.load * graph.num_hosts * host_bps(graph, 0)
    starts = rng.exponential(sizes.mean() * BITS / total_bps, count).cumsum()
    sources = rng.integers(0, graph.num_hosts, count)
    destinations: Ints = (sources + rng.integers(1, graph.num_hosts, count)) % graph.num_hosts
    return [
        PacketFlow(int(source), int(destination), float(size), transport, float(start))
        for source, destination, size, start in zip(sources, destinations, sizes, starts, strict=True)
    ]
