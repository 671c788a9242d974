"""The papers' own experiments on the packet engine, scaled down: what figures draw and pages tell.

Each returns plain arrays and repeats exactly by its seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fabric.simulated.graph import Floats, NetworkGraph
from fabric.simulated.packet import PacketFlow, PacketRun, SwitchSettings, simulate_packets
from fabric.simulated.topologies import FatTree, LeafSpine
from fabric.simulated.transports import Marking

BITS = 8
SHORT_BYTES, LONG_BYTES = (1e3, 1e5), (1e6, 3e6)  # of a mixed load, 17 of 20 flows short


@dataclass(frozen=True, slots=True, eq=False)
class QueueTrace:
    """One queue while many send to one host: bytes and pause frames so far at each time."""

    times_s: Floats
    queue_bytes: Floats
    num_pauses: Floats
    goodput_bps: float


def incast_goodput_bps(
    num_senders: int, timeout_s: float, *, total_bytes: float = 1e6, rounds: int = 3, transport: str = "reno"
) -> float:
    """Payload per second of blocks of `total_bytes`, striped over `num_senders`, behind a shallow 1 Gbit/s port.

    The next block is asked for when the last is there (Vasudevan et al., SIGCOMM 2009, section 3).
    """
    graph = LeafSpine(1, 1, num_senders + 1, gbit=1, delay_us=25).build()
    settings = SwitchSettings(port_bytes=32_000, timeout_min_s=timeout_s)
    taken_s = 0.0
    for number in range(rounds):
        flows = [PacketFlow(host, 0, total_bytes / num_senders, transport) for host in range(1, num_senders + 1)]
        result = simulate_packets(
            graph, flows, SwitchSettings(port_bytes=settings.port_bytes, timeout_min_s=timeout_s, seed=number + 1)
        )
        taken_s += float(result.end_s.max())
    return rounds * total_bytes * BITS / taken_s


def queue_trace(transport: str, *, num_senders: int = 8, until_s: float = 4e-3, num_samples: int = 200) -> QueueTrace:
    """`num_senders` long flows into one 40 Gbit/s port of a switch with 2 MB, from their start."""
    graph = LeafSpine(1, 1, num_senders + 1, gbit=40).build()
    marking = Marking(65 * 1538.0, 65 * 1538.0) if transport == "dctcp" else None
    flows = [PacketFlow(host, 0, 1e9, transport) for host in range(1, num_senders + 1)]
    run = PacketRun(graph, flows, SwitchSettings(buffer_bytes=2_000_000, marking=marking))
    link = graph.link(int(graph.heads[graph.link(0, graph.num_hosts)]), 0)
    times_s = np.linspace(until_s / num_samples, until_s, num_samples)
    queue, pauses = np.zeros(num_samples), np.zeros(num_samples)
    for place, time_s in enumerate(times_s):
        run.advance(float(time_s))
        queue[place], pauses[place] = run.queue_bytes(link), run.result().num_pauses.sum()
    goodput = float(run.delivered_bytes().sum()) * BITS / until_s
    return QueueTrace(times_s, queue, pauses, goodput)


def completion_slowdowns(transport: str, *, num_flows: int = 400, load: float = 0.6, seed: int = 1) -> Floats:
    """Completion times of a mixed load over those of the flows alone at line rate, on a fat-tree of 16 hosts."""
    graph = FatTree(4, gbit=40, delay_us=2).build()
    flows = mixed_load(graph, transport, num_flows, load, 40.0, seed)
    settings = SwitchSettings(buffer_bytes=4 * 240_000, timeout_min_s=5e-3)
    ends_s = simulate_packets(graph, flows, settings).end_s
    alone_s = np.array([flow.num_bytes * BITS / 40e9 + 20e-6 for flow in flows])
    return np.sort((ends_s - np.array([flow.start_s for flow in flows])) / alone_s)


def mixed_load(
    graph: NetworkGraph, transport: str, num_flows: int, load: float, gbit: float, seed: int
) -> Sequence[PacketFlow]:
    """Poisson arrivals between random hosts, most short and most bytes in long ones, at `load` of the hosts' links."""
    rng = np.random.default_rng(seed)
    is_short = rng.random(num_flows) < 17 / 20
    sizes = np.where(is_short, rng.uniform(*SHORT_BYTES, num_flows), rng.uniform(*LONG_BYTES, num_flows))
    starts = rng.exponential(sizes.mean() * BITS / (load * graph.num_hosts * gbit * 1e9), num_flows).cumsum()
    sources = rng.integers(0, graph.num_hosts, num_flows)
    destinations = (sources + rng.integers(1, graph.num_hosts, num_flows)) % graph.num_hosts
    return [
        PacketFlow(int(source), int(destination), float(size), transport, float(start))
        for source, destination, size, start in zip(sources, destinations, sizes, starts, strict=True)
    ]
