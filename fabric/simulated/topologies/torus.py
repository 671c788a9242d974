"""Torus: hosts on a grid that wraps round, each joined to its two neighbours in every dimension; no switches.

Source: Dally and Towles, Principles and Practices of Interconnection Networks (2004), chapter 5; dimension-order
routing is section 8.4.2. Diameter Σ⌊d_i/2⌋. Bisection 2N/d cables where the longest side d is even; a side of 2 has
one cable and not two, and counts as one of 4. Where it is odd, a bound: routes the shorter way round lead
N(d² − 1)/8d pairs of hosts over a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from fabric.simulated.graph import Cabling, NetworkGraph
from fabric.simulated.routing import Algorithmic
from fabric.simulated.topologies.base import TopologyFacts, least_cut_bps, require


@dataclass(frozen=True, slots=True)
class Torus:
    """`sides` hosts along each dimension."""

    sides: tuple[int, ...] = (4, 4)
    gbit: float = 10.0
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        require(len(self.sides) > 0 and min(self.sides) >= 2, f"torus {self.sides} is flat", "use sides of 2 or more")

    def build(self) -> NetworkGraph:
        """Hosts in row-major order."""
        cabling, hosts = Cabling(), np.arange(prod(self.sides))
        place = np.array(np.unravel_index(hosts, self.sides))
        for dimension, side in enumerate(self.sides):
            ahead = place.copy()
            ahead[dimension] = (ahead[dimension] + 1) % side
            kept = place[dimension] < (1 if side == 2 else side)
            cabling.join(hosts[kept], np.ravel_multi_index(tuple(ahead), self.sides)[kept], self.gbit)
        routing = Algorithmic(self.nodes_of, 1)
        name = "torus(" + "x".join(map(str, self.sides)) + ")"
        return cabling.graph(name, prod(self.sides), 0, self.delay_us, routing)

    def nodes_of(self, source: int, destination: int, choice: int) -> list[int]:
        """Along each dimension in order, the shorter way round; half-way, the way up."""
        place = [int(part) for part in np.unravel_index(source, self.sides)]
        goal = np.unravel_index(destination, self.sides)
        nodes = [source]
        for dimension, side in enumerate(self.sides):
            ahead = (int(goal[dimension]) - place[dimension]) % side
            step = 1 if 2 * ahead <= side else -1
            for _ in range(min(ahead, side - ahead)):
                place[dimension] = (place[dimension] + step) % side
                nodes.append(int(np.ravel_multi_index(tuple(place), self.sides)))
        return nodes

    def facts(self) -> TopologyFacts:
        num_hosts = prod(self.sides)
        load, fullest = max(((side * side - side % 2) / (8 * side) if side > 2 else 0.5, side) for side in self.sides)
        cables = sum(num_hosts if side > 2 else num_hosts // 2 for side in self.sides)
        reach = sum(side // 2 for side in self.sides)
        return TopologyFacts(
            num_hosts=num_hosts,
            num_switches=0,
            num_cables=cables,
            max_edges=reach,
            bisection_bps=least_cut_bps(num_hosts, [(num_hosts * load, self.gbit * 1e9)]),
            bisection_is_exact=fullest % 2 == 0,
            max_server_hops=reach,
        )
