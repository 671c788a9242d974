"""DCell: t_l = t_{l−1}(t_{l−1} + 1) servers, every copy of level l − 1 joined to every other by one cable.

Paper: Guo et al., DCell: A Scalable and Fault-Tolerant Network Structure for Data Centers, SIGCOMM 2008, sections 3
and 4. Copy a's server b − 1 is joined to copy b's server a (a < b). DCellRouting takes at most 2^(k+1) − 1 hops from
server to server. The paper proves a bisection of more than t_k/(4·log_n t_k) cables, from bounds of what all pairs of
servers lead over a link; here it follows from their number itself.

Differs from the paper: a cut route takes the shortest path that is left, in place of DFR.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric.simulated.graph import Cabling, NetworkGraph
from fabric.simulated.routing import Algorithmic
from fabric.simulated.topologies.base import TopologyFacts, require
from fabric.simulated.topologies.recursive import Recursion


@dataclass(frozen=True, slots=True)
class DCell:
    """`n` servers per mini-switch, `k` levels above it."""

    n: int = 4
    k: int = 1
    gbit: float = 10.0
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        require(self.n >= 2 and self.k >= 0, f"no DCell has n={self.n}, k={self.k}", "use n of 2 or more, k of 0 to 3")
        require(self.k <= 3, f"DCell of k={self.k} has millions of servers", "use k of 0 to 3")

    @property
    def recursion(self) -> Recursion:
        sizes = [self.n]
        for _ in range(self.k):
            sizes.append(sizes[-1] * (sizes[-1] + 1))
        return Recursion(tuple(sizes), lambda level, copy, other: other - 1 if other > copy else other)

    def build(self) -> NetworkGraph:
        """Servers by number; then mini-switches."""
        recursion, cabling = self.recursion, Cabling()
        recursion.join(cabling, self.gbit)
        routing = Algorithmic(lambda source, destination, choice: recursion.path(source, destination), 1)
        num_hosts = recursion.num_hosts
        return cabling.graph(f"dcell(n={self.n}, k={self.k})", num_hosts, num_hosts // self.n, self.delay_us, routing)

    def facts(self) -> TopologyFacts:
        recursion = self.recursion
        num_hosts = recursion.num_hosts
        return TopologyFacts(
            num_hosts=num_hosts,
            num_switches=num_hosts // self.n,
            num_cables=num_hosts + num_hosts * self.k // 2,
            max_edges=2 * 2**self.k + (2**self.k - 1),
            bisection_bps=recursion.least_cut(spacing=1, num_backups=self.k) * self.gbit * 1e9,
            diameter_is_exact=False,
            bisection_is_exact=self.k == 0,
            max_server_hops=2 ** (self.k + 1) - 1,
        )
