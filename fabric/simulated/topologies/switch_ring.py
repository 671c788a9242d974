"""Switch ring: switches in a circle, each with hosts of its own: the least network whose lossless links can deadlock.

Source: Hu et al., Deadlocks in Datacenter Networks: Why Do They Form, and How to Avoid Them, HotNets 2016, on cyclic
buffer dependencies. Nobody builds one; failures and loops in routes make them of other networks.
S·H hosts, S switches, S·(H + 1) cables; two hosts are at most ⌊S/2⌋ + 2 edges apart. Bisection: two cables of the ring
and, of an odd number of switches, those of half a switch's hosts, unless the hosts' own are fewer.
With five switches or more, hosts that send two switches on all go the same way round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fabric.simulated.graph import Cabling, NetworkGraph
from fabric.simulated.routing import EqualCost
from fabric.simulated.topologies.base import TopologyFacts, require


@dataclass(frozen=True, slots=True)
class SwitchRing:
    """`switches` in a circle with `hosts_per_switch` hosts each."""

    switches: int = 5
    hosts_per_switch: int = 2
    gbit: float = 10.0
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        require(self.switches >= 3, f"{self.switches} switches make no circle", "use at least 3")
        require(self.hosts_per_switch >= 1, "a switch without hosts sends nothing", "use at least 1 host per switch")

    def build(self) -> NetworkGraph:
        """Hosts by switch, then the switches around the circle."""
        num_hosts = self.switches * self.hosts_per_switch
        hosts, switches = np.arange(num_hosts), num_hosts + np.arange(self.switches)
        cabling = Cabling()
        cabling.join(hosts, num_hosts + hosts // self.hosts_per_switch, self.gbit)
        cabling.join(switches, np.roll(switches, -1), self.gbit)
        name = f"switch-ring({self.switches}, {self.hosts_per_switch})"
        return cabling.graph(name, num_hosts, self.switches, self.delay_us, EqualCost())

    def facts(self) -> TopologyFacts:
        num_hosts = self.switches * self.hosts_per_switch
        left_over = num_hosts // 2 % self.hosts_per_switch
        return TopologyFacts(
            num_hosts=num_hosts,
            num_switches=self.switches,
            num_cables=num_hosts + self.switches,
            max_edges=self.switches // 2 + 2,
            bisection_bps=1e9 * self.gbit * min(num_hosts // 2, 2 + min(left_over, self.hosts_per_switch - left_over)),
        )
