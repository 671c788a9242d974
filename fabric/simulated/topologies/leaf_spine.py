"""Leaf-spine: every leaf switch has a cable to every spine; two hosts are at most four edges apart.

Source: Alizadeh and Edsall, On the Data Path Performance of Leaf-Spine Datacenter Fabrics, HOTI 2013.
L·H hosts, L + S switches, L·H + L·S cables; bisection half of the spine cables unless the hosts' own are fewer.
Oversubscription is H·gbit / (S·spine_gbit).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fabric.simulated.graph import Cabling, NetworkGraph
from fabric.simulated.routing import EqualCost
from fabric.simulated.topologies.base import TopologyFacts, require, whole_cables


@dataclass(frozen=True, slots=True)
class LeafSpine:
    """`leaves` switches with `hosts_per_leaf` hosts each, under `spines` switches."""

    leaves: int = 4
    spines: int = 4
    hosts_per_leaf: int = 4
    gbit: float = 10.0
    spine_gbit: float | None = None
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        sizes = (self.leaves, self.spines, self.hosts_per_leaf)
        require(min(sizes) >= 1, f"leaf-spine{sizes} lacks a tier", "use at least 1 leaf, 1 spine and 1 host per leaf")

    @property
    def _spine_gbit(self) -> float:
        return self.gbit if self.spine_gbit is None else self.spine_gbit

    def build(self) -> NetworkGraph:
        """Hosts by leaf; then leaves, then spines."""
        num_hosts = self.leaves * self.hosts_per_leaf
        hosts, pairs = np.arange(num_hosts), np.arange(self.leaves * self.spines)
        cabling = Cabling()
        cabling.join(hosts, num_hosts + hosts // self.hosts_per_leaf, self.gbit)
        cabling.join(num_hosts + pairs // self.spines, num_hosts + self.leaves + pairs % self.spines, self._spine_gbit)
        name = f"leaf-spine({self.leaves}, {self.spines}, {self.hosts_per_leaf})"
        return cabling.graph(name, num_hosts, self.leaves + self.spines, self.delay_us, EqualCost())

    def facts(self) -> TopologyFacts:
        """Counts and the bisection; a bound for an odd number of leaves with thin cables up."""
        num_hosts = self.leaves * self.hosts_per_leaf
        own, up = self.hosts_per_leaf * self.gbit * 1e9, self.spines * self._spine_gbit * 1e9
        per_leaf = own if self.leaves == 1 else min(own, up)
        rates = [self.gbit * 1e9, self._spine_gbit * 1e9]
        return TopologyFacts(
            num_hosts=num_hosts,
            num_switches=self.leaves + self.spines,
            num_cables=num_hosts + self.leaves * self.spines,
            max_edges=4 if self.leaves > 1 else 2,
            bisection_bps=whole_cables(num_hosts // 2 / self.hosts_per_leaf * per_leaf, rates),
            bisection_is_exact=self.leaves % 2 == 0 or per_leaf == own,
        )
