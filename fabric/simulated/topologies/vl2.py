"""VL2: a Clos network of rack, aggregation and intermediate switches, with Valiant load balancing.

Paper: Greenberg et al., VL2: A Scalable and Flexible Data Center Network, SIGCOMM 2009, section 4.
D_A·D_I/4 racks of 20 servers, D_I aggregation switches with D_A ports, D_A/2 intermediate ones with D_I ports. Switches
are joined at ten times the servers' rate. A flow climbs to a random intermediate switch and comes down from it, also
when its racks share an aggregation switch; only traffic inside a rack turns at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fabric.simulated.graph import Cabling, NetworkGraph
from fabric.simulated.routing import Algorithmic
from fabric.simulated.topologies.base import TopologyFacts, require

SERVERS_PER_RACK = 20
FASTER_SWITCHES = 10.0


@dataclass(frozen=True, slots=True)
class Vl2:
    """`aggregation_ports` is D_A, `intermediate_ports` is D_I; both even."""

    aggregation_ports: int = 8
    intermediate_ports: int = 4
    gbit: float = 1.0
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        ports = (self.aggregation_ports, self.intermediate_ports)
        even = min(ports) >= 2 and all(number % 2 == 0 for number in ports)
        require(even, f"VL2 with D_A, D_I = {ports} has half switches", "use even numbers of ports, e.g. 8 and 4")

    @property
    def num_racks(self) -> int:
        return self.aggregation_ports * self.intermediate_ports // 4

    def build(self) -> NetworkGraph:
        """Hosts by rack; then rack, aggregation and intermediate switches."""
        num_hosts, num_middle = SERVERS_PER_RACK * self.num_racks, self.aggregation_ports // 2
        rack, aggregation = num_hosts, num_hosts + self.num_racks
        middle = aggregation + self.intermediate_ports
        cabling = Cabling()
        hosts, racks = np.arange(num_hosts), np.arange(self.num_racks)
        cabling.join(hosts, rack + hosts // SERVERS_PER_RACK, self.gbit)
        for side in range(2):
            above = [aggregation + self._pair(number) + side for number in range(self.num_racks)]
            cabling.join(rack + racks, above, FASTER_SWITCHES * self.gbit)
        pairs = np.arange(self.intermediate_ports * num_middle)
        cabling.join(aggregation + pairs // num_middle, middle + pairs % num_middle, FASTER_SWITCHES * self.gbit)
        num_switches = self.num_racks + self.intermediate_ports + num_middle
        routing = Algorithmic(self.nodes_of, 4 * num_middle)
        name = f"vl2({self.aggregation_ports}, {self.intermediate_ports})"
        return cabling.graph(name, num_hosts, num_switches, self.delay_us, routing)

    def nodes_of(self, source: int, destination: int, choice: int) -> list[int]:
        """Up over one of two aggregation switches to an intermediate one, down over one of two."""
        num_hosts = SERVERS_PER_RACK * self.num_racks
        up, down = source // SERVERS_PER_RACK, destination // SERVERS_PER_RACK
        if up == down:
            return [source, num_hosts + up, destination]
        aggregation = num_hosts + self.num_racks
        middle = aggregation + self.intermediate_ports + choice // 4
        first, last = aggregation + self._pair(up) + choice % 2, aggregation + self._pair(down) + choice // 2 % 2
        if first == last:  # no path visits a switch twice: come down over the other one
            last = aggregation + self._pair(down) + (choice + 1) % 2
        return [source, num_hosts + up, first, middle, last, num_hosts + down, destination]

    def _pair(self, rack: int) -> int:
        """The first of the two aggregation switches above a rack."""
        return rack % (self.intermediate_ports // 2) * 2

    def facts(self) -> TopologyFacts:
        """Full bisection: half of the servers at their own rate, which balancing can carry for any halves."""
        num_hosts = SERVERS_PER_RACK * self.num_racks
        cables = num_hosts + 2 * self.num_racks + self.aggregation_ports * self.intermediate_ports // 2
        return TopologyFacts(
            num_hosts=num_hosts,
            num_switches=self.num_racks + self.intermediate_ports + self.aggregation_ports // 2,
            num_cables=cables,
            max_edges=6,
            bisection_bps=num_hosts // 2 * self.gbit * 1e9,
            diameter_is_exact=self.intermediate_ports > 2,  # else all racks share one pair
        )
