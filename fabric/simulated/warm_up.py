"""Compile the engines once, so that a first run does not wait: set-up calls it, and the machine code is cached.

An edit of a file that compiled code comes from compiles what changed at its next use (`fabric.simulated.compiled`).
"""

from __future__ import annotations

from fabric.collectives import Collective
from fabric.simulated.flow import simulate_flows
from fabric.simulated.packet import PacketFlow, simulate_packets
from fabric.simulated.routing import route
from fabric.simulated.scheduling.fluid import max_min_rates
from fabric.simulated.topologies import LeafSpine
from fabric.simulated.traffic import TrafficJob, collective_rounds


def warm_up() -> None:
    """Route, fill links, and send flows through both engines; a test names entry points that this does not reach."""
    graph = LeafSpine(1, 1, 3).build()
    max_min_rates(route(graph, [0], [1]), graph.link_rate_bps)
    simulate_flows(graph, [TrafficJob((0, 1, 2), collective_rounds(Collective.ALL_REDUCE, 3, 1e6))])
    # telemetry has another shape with HPCC, and the same type
    simulate_packets(graph, [PacketFlow(1, 0, 1e4)])
