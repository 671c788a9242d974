"""BCube: servers with k + 1 ports, joined by k + 1 levels of n-port switches; k + 1 disjoint paths between any two.

Paper: Guo et al., BCube: A High Performance, Server-centric Network Architecture for Modular Data Centers, SIGCOMM
2009, sections 3 and 4. A server's number has k + 1 digits to the base n; the switch of level l joins the n servers that
differ in digit l alone. BCubeRouting corrects one digit per hop. BuildPathSet makes k + 1 paths that share no switch or
server: path i corrects digits i, i − 1, …, 0, k, …, i + 1; where digit i is right already, it first leaves by a
neighbour at level i and corrects digit i last.

No cut between halves A and B has fewer cables than |A||B|·n/(N(n − 1)), since routes lead N(n − 1)/n pairs of servers
over a link, nor than N·J(|A|/N) with J(t) = min(t·ln(1/t), (1 − t)·ln(1/(1 − t))): a switch with a of its n servers in
A costs min(a, n − a) cables, and E[J(Y) + |Y − m|] ≥ J(E Y) for all Y in [0, 1], such as the parts of A in n copies.
Halves along a digit cut N/2 (n even), but others cut fewer: 16 for n = 6, k = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log

import numpy as np

from fabric.simulated.graph import Cabling, Ints, NetworkGraph
from fabric.simulated.routing import Algorithmic
from fabric.simulated.topologies.base import ROUNDING, TopologyFacts, pairs_between_halves, require


@dataclass(frozen=True, slots=True)
class BCube:
    """`n` ports per switch, levels 0 … `k`."""

    n: int = 4
    k: int = 1
    gbit: float = 10.0
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        require(self.n >= 2, f"switches of n={self.n} ports join nothing", "use n of at least 2")
        require(self.k >= 0, f"BCube has levels 0 … k, not k={self.k}", "use k of at least 0")

    @property
    def num_hosts(self) -> int:
        return int(self.n ** (self.k + 1))

    @property
    def switches_per_level(self) -> int:
        return int(self.n**self.k)

    def build(self) -> NetworkGraph:
        """Servers by number; then switches by level."""
        cabling, servers = Cabling(), np.arange(self.num_hosts)
        for level in range(self.k + 1):
            cabling.join(servers, self.num_hosts + self.switch(servers, level), self.gbit)
        num_switches = (self.k + 1) * self.switches_per_level
        routing = Algorithmic(self.nodes_of, self.k + 1)
        return cabling.graph(f"bcube(n={self.n}, k={self.k})", self.num_hosts, num_switches, self.delay_us, routing)

    def switch(self, server: int | Ints, level: int) -> Ints:
        """The index among all switches of the one that `server` has at `level`: its number without that digit."""
        low = server % self.n**level
        return np.asarray(level * self.switches_per_level + server // self.n ** (level + 1) * self.n**level + low)

    def nodes_of(self, source: int, destination: int, choice: int) -> list[int]:
        start = self.k - choice
        order = [*range(start, -1, -1), *range(self.k, start, -1)]
        nodes, here = [source], source
        if self._digit(source, start) == self._digit(destination, start):
            aside = self._with_digit(source, start, (self._digit(source, start) + 1) % self.n)
            here = self._hop(nodes, here, aside, start)
            order = [*order[1:], start]
        for level in order:
            right = self._with_digit(here, level, self._digit(destination, level))
            if right != here:
                here = self._hop(nodes, here, right, level)
        return nodes

    def _hop(self, nodes: list[int], here: int, there: int, level: int) -> int:
        nodes += [self.num_hosts + int(self.switch(here, level)), there]
        return there

    def _digit(self, server: int, level: int) -> int:
        return int(server // self.n**level % self.n)

    def _with_digit(self, server: int, level: int, digit: int) -> int:
        return server + int((digit - self._digit(server, level)) * self.n**level)

    def facts(self) -> TopologyFacts:
        num_hosts, larger = self.num_hosts, (self.num_hosts + 1) // 2
        spread = pairs_between_halves(num_hosts) * self.n / (num_hosts * (self.n - 1))
        is_exact = self.n == 2 or self.k == 0
        cut = num_hosts // 2 if is_exact else ceil(max(spread, larger * log(num_hosts / larger)) - ROUNDING)
        return TopologyFacts(
            num_hosts=self.num_hosts,
            num_switches=(self.k + 1) * self.switches_per_level,
            num_cables=(self.k + 1) * self.num_hosts,
            max_edges=2 * (self.k + 1),
            bisection_bps=cut * self.gbit * 1e9,
            bisection_is_exact=is_exact,
            max_server_hops=self.k + 1,
        )
