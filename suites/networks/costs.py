"""What each network of the suite is built of, and how far apart its hosts are: cost and hops per topology.

    python -m scripts.topology_costs    # renews the table of docs/guide/networks.md

Counts are of what `build()` makes. Paths are shortest ones over all pairs of hosts; where servers forward, a cable to
and from a switch both count. Bisection is what a host has to the other half when all of one half send: at least so much
where only a bound is proved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fabric.simulated.measures import edge_distances
from fabric.simulated.topologies import parse_topology
from suites.networks.places import FAMILIES, SIZES

HEADINGS = (
    "network", "hosts", "switches", "switch ports", "server ports", "cables", "cables per host", "longest path",
    "mean path", "bisection per host, Gbit/s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyCost:
    """One network. Ports are those with a cable; paths are in cables; `bisection_bps` is per host of a half."""

    network: str
    num_hosts: int
    num_switches: int
    num_switch_ports: int
    num_server_ports: int
    num_cables: int
    longest_path: int
    mean_path: float
    bisection_bps: float
    bisection_is_exact: bool

    @property
    def cells(self) -> tuple[str, ...]:
        """As the table shows them."""
        counts = self.num_hosts, self.num_switches, self.num_switch_ports, self.num_server_ports, self.num_cables
        return (
            f"`{self.network}`",
            *(f"{count:,}" for count in counts),
            f"{self.num_cables / self.num_hosts:.2f}",
            str(self.longest_path),
            f"{self.mean_path:.2f}",
            f"{'' if self.bisection_is_exact else '≥ '}{self.bisection_bps / 1e9:.3g}",
        )


def cost_of(network: str) -> TopologyCost:
    """Build the network of this text and count. Raises: NetworkError."""
    topology = parse_topology(network)
    graph, facts = topology.build(), topology.facts()
    at_switch = int((graph.ends >= graph.num_hosts).sum())
    distances = edge_distances(graph)
    between = distances[~np.eye(graph.num_hosts, dtype=bool)]
    return TopologyCost(
        network=network,
        num_hosts=graph.num_hosts,
        num_switches=graph.num_switches,
        num_switch_ports=at_switch,
        num_server_ports=graph.ends.size - at_switch,
        num_cables=graph.num_cables,
        longest_path=int(between.max()),
        mean_path=float(between.mean()),
        bisection_bps=facts.bisection_bps / (graph.num_hosts / 2),
        bisection_is_exact=facts.bisection_is_exact,
    )


def rows(places: Sequence[int] = range(len(SIZES))) -> list[TopologyCost]:
    """The suite's networks at these places of `SIZES`, size by size."""
    return [cost_of(texts[place]) for place in places for texts in FAMILIES.values()]


def table(costs: Sequence[TopologyCost]) -> str:
    """As Markdown."""
    head = f"| {' | '.join(HEADINGS)} |\n|---|{'---:|' * (len(HEADINGS) - 1)}"
    return "\n".join([head, *(f"| {' | '.join(cost.cells)} |" for cost in costs)])
