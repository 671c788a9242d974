"""Fat-Tree: k pods of k-port switches, any host to any other at full rate over k²/4 equal paths.

Paper: Al-Fares et al., A Scalable, Commodity Data Center Network Architecture, SIGCOMM 2008, section 2.2.
k³/4 hosts, 5k²/4 switches, 3k³/4 cables, six edges at most, bisection k³/8 cables. Rates per tier make it
oversubscribed: host cables `gbit`, edge to aggregation `pod_gbit`, aggregation to core `core_gbit` (None: as below).

Differs from the paper: flows are spread by ECMP hashing, not by its two-level tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fabric.simulated.graph import Cabling, NetworkGraph
from fabric.simulated.routing import EqualCost
from fabric.simulated.topologies.base import TopologyFacts, require


@dataclass(frozen=True, slots=True)
class FatTree:
    """`k` ports per switch, even."""

    k: int = 8
    gbit: float = 10.0
    pod_gbit: float | None = None
    core_gbit: float | None = None
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        require(self.k >= 2 and self.k % 2 == 0, f"a fat-tree of k={self.k} has half ports", "use an even k, e.g. 8")

    def build(self) -> NetworkGraph:
        """Hosts by pod and edge switch; then edge, aggregation and core switches."""
        half, num_hosts = self.k // 2, self.k**3 // 4
        per_layer = self.k * half
        edge, aggregation, core = num_hosts, num_hosts + per_layer, num_hosts + 2 * per_layer
        cabling = Cabling()
        hosts = np.arange(num_hosts)
        cabling.join(hosts, edge + hosts // half, self.gbit)
        ports = np.arange(per_layer * half)  # of each layer of a pod: switch, then port
        switch, port = ports // half, ports % half
        pod_gbit = self.gbit if self.pod_gbit is None else self.pod_gbit
        cabling.join(edge + switch, aggregation + switch // half * half + port, pod_gbit)
        core_gbit = pod_gbit if self.core_gbit is None else self.core_gbit
        cabling.join(aggregation + switch, core + switch % half * half + port, core_gbit)
        return cabling.graph(f"fat-tree(k={self.k})", num_hosts, 5 * self.k**2 // 4, self.delay_us, EqualCost())

    def facts(self) -> TopologyFacts:
        """As in section 2.2 of the paper; bisection by the slowest tier."""
        slowest = min(gbit for gbit in (self.gbit, self.pod_gbit, self.core_gbit) if gbit is not None)
        return TopologyFacts(
            num_hosts=self.k**3 // 4,
            num_switches=5 * self.k**2 // 4,
            num_cables=3 * self.k**3 // 4,
            max_edges=6,
            bisection_bps=self.k**3 / 8 * slowest * 1e9,
        )
