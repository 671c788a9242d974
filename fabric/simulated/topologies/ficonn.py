"""FiConn: servers with two ports; each level uses half of the backup ports that are still free.

Paper: Li et al., FiConn: Using Backup Port for Server Interconnection in Data Centers, INFOCOM 2009, sections 3 and 4.
N_k = N_{k−1}(b/2 + 1) with b = N_{k−1}/2^(k−1) free backup ports in a copy of level k − 1. Server s·2^k + 2^(k−1) − 1
of copy a is joined to its like in copy b: s = b − 1 in a, s = a in b (a < b). Routes take at most 2^(k+1) − 1 hops.

Traffic-aware routing: choice 0 is the direct route, choice v > 0 goes round by the v-th other copy of the level where
source and destination part. `scheduling.least_loaded` picks among them by the load of their links.
Differs from the paper: the source knows all loads, and detours at the highest level only.
"""

from __future__ import annotations

from dataclasses import dataclass

from fabric.simulated.graph import Cabling, NetworkGraph
from fabric.simulated.routing import Algorithmic
from fabric.simulated.topologies.base import TopologyFacts, require
from fabric.simulated.topologies.recursive import Recursion


@dataclass(frozen=True, slots=True)
class FiConn:
    """`n` servers per switch (even), `k` levels above it."""

    n: int = 4
    k: int = 1
    gbit: float = 10.0
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        require(self.n >= 2 and self.n % 2 == 0, f"FiConn of n={self.n} halves a port", "use an even n, e.g. 4")
        require(0 <= self.k <= 4, f"no FiConn has k={self.k}", "use k of 0 to 4")

    @property
    def _sizes(self) -> tuple[int, ...]:
        sizes = [self.n]
        for level in range(1, self.k + 1):
            sizes.append(sizes[-1] * (sizes[-1] // 2**level + 1))
        return tuple(sizes)

    @property
    def recursion(self) -> Recursion:
        """A level's cables end at every second server that was free before."""

        def exit_of(level: int, copy: int, other: int) -> int:
            return int((other - 1 if other > copy else other) * 2**level + 2 ** (level - 1) - 1)

        return Recursion(self._sizes, exit_of)

    def build(self) -> NetworkGraph:
        """Servers by number; then switches."""
        recursion, cabling = self.recursion, Cabling()
        recursion.join(cabling, self.gbit)
        choices = recursion.copies(self.k) - 1 if self.k else 1
        routing = Algorithmic(recursion.path, max(choices, 1))
        num_hosts = recursion.num_hosts
        return cabling.graph(f"ficonn(n={self.n}, k={self.k})", num_hosts, num_hosts // self.n, self.delay_us, routing)

    def facts(self) -> TopologyFacts:
        num_hosts = self._sizes[-1]
        return TopologyFacts(
            num_hosts=num_hosts,
            num_switches=num_hosts // self.n,
            num_cables=num_hosts + round(num_hosts * (1 - 0.5**self.k) / 2),
            max_edges=2 * 2**self.k + (2**self.k - 1),
            bisection_bps=self.recursion.least_cut(spacing=2, num_backups=1) * self.gbit * 1e9,
            diameter_is_exact=False,
            bisection_is_exact=self.k == 0,
            max_server_hops=2 ** (self.k + 1) - 1,
        )
