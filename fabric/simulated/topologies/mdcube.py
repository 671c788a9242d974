"""MDCube: containers, each a BCube, joined by fast cables between their switches; complete graphs in D dimensions.

Paper: Wu et al., MDCube: A High Performance Network Structure for Modular Data Center Interconnection, CoNEXT 2009,
sections 3 and 4. Containers stand on a grid `grid` = (m_1, …, m_D). In dimension d a container is joined to the
m_d − 1 others of its row, by one of its BCube's switches each; so Σ(m_d − 1) may not exceed its (k + 1)·n^k switches.
A route corrects one container coordinate at a time: BCube path to a server under the exit switch, up, across, down.
Where two walks meet in one switch, the way between is cut out.

The bound of the bisection counts pairs of servers, M of them in a container and N in all. A cable of dimension d has
N·M/m_d, which spread over both containers. A server's cable has M(n − 1)/n of its own container's, 1/n of what passes
its switch, and at most (n − 1)/n² of what passes each other switch with a cable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import numpy as np

from fabric.simulated.graph import Cabling, Ints, NetworkGraph
from fabric.simulated.routing import Algorithmic
from fabric.simulated.topologies.base import TopologyFacts, least_cut_bps, require
from fabric.simulated.topologies.bcube import BCube


@dataclass(frozen=True, slots=True)
class MdCube:
    """BCube_k(n) containers on `grid`; container cables of `container_gbit` (None: as the others)."""

    n: int = 4
    k: int = 1
    grid: tuple[int, ...] = (3, 3)
    gbit: float = 10.0
    container_gbit: float | None = None
    delay_us: float = 1.0

    def __post_init__(self) -> None:
        require(len(self.grid) > 0 and min(self.grid) >= 2, f"grid {self.grid} joins nothing", "use sides of 2 or more")
        switches = (self.k + 1) * self.n**self.k
        require(
            self._ports_used <= switches,
            f"grid {self.grid} takes {self._ports_used} switches of a container that has {switches}",
            "use a smaller grid, or larger n or k",
        )

    @property
    def _ports_used(self) -> int:
        return sum(side - 1 for side in self.grid)

    @property
    def container(self) -> BCube:
        return BCube(self.n, self.k, self.gbit, self.delay_us)

    def build(self) -> NetworkGraph:
        """Servers by container; then switches by container."""
        cube, num_containers = self.container, prod(self.grid)
        num_hosts, servers = num_containers * cube.num_hosts, np.arange(cube.num_hosts)
        cabling = Cabling()
        for container in range(num_containers):
            first = container * cube.num_hosts
            for level in range(self.k + 1):
                cabling.join(first + servers, self._switch(container, cube.switch(servers, level)), self.gbit)
        pairs = list(self._container_cables())
        fast = self.gbit if self.container_gbit is None else self.container_gbit
        cabling.join([tail for tail, _ in pairs], [head for _, head in pairs], fast)
        num_switches = num_containers * (self.k + 1) * cube.switches_per_level
        routing = Algorithmic(self.nodes_of, self.k + 1)
        name = f"mdcube(n={self.n}, k={self.k}, grid={self.grid})"
        return cabling.graph(name, num_hosts, num_switches, self.delay_us, routing)

    def nodes_of(self, source: int, destination: int, choice: int) -> list[int]:
        """One container coordinate at a time; `choice` picks among the BCube paths inside containers."""
        size = self.container.num_hosts
        nodes, here, goal = [source], source // size, destination // size
        for dimension in range(len(self.grid)):
            coordinates = self._coordinates(here)
            wanted = self._coordinates(goal)[dimension]
            if coordinates[dimension] == wanted:
                continue
            there = self._moved(here, dimension, wanted)
            leave = self._exit(dimension, coordinates[dimension], wanted)
            enter = self._exit(dimension, wanted, coordinates[dimension])
            self._walk(nodes, here, self._server_under(leave, nodes[-1] % size), choice)
            landing = there * size + self._server_under(enter, nodes[-1] % size)
            nodes += [int(self._switch(here, leave)), int(self._switch(there, enter)), landing]
            here = there
        self._walk(nodes, here, destination % size, choice)
        return _without_loops(nodes)

    def _walk(self, nodes: list[int], container: int, goal: int, choice: int) -> None:
        """Append a BCube path inside `container` from the last node to its server `goal`."""
        cube = self.container
        start = nodes[-1] % cube.num_hosts
        if start == goal:
            return
        inside = cube.nodes_of(start, goal, choice)
        for node in inside[1:]:
            server = node < cube.num_hosts
            nodes.append(
                container * cube.num_hosts + node if server else int(self._switch(container, node - cube.num_hosts))
            )

    def _switch(self, container: int, switch: int | Ints) -> Ints:
        cube = self.container
        first = prod(self.grid) * cube.num_hosts + container * (self.k + 1) * cube.switches_per_level
        return np.asarray(first + switch)

    def _exit(self, dimension: int, coordinate: int, other: int) -> int:
        """The switch of a container at `coordinate` that is joined to the container at `other` of its row."""
        earlier = sum(side - 1 for side in self.grid[:dimension])
        return earlier + (other - 1 if other > coordinate else other)

    def _server_under(self, switch: int, near: int) -> int:
        """The server under `switch` that shares `near`'s digit at the switch's level, so spreads over its n ports."""
        cube = self.container
        level, rest = divmod(switch, cube.switches_per_level)
        high, low = divmod(rest, self.n**level)
        digit = near // self.n**level % self.n
        return int((high * self.n + digit) * self.n**level + low)

    def _coordinates(self, container: int) -> tuple[int, ...]:
        return tuple(int(part) for part in np.unravel_index(container, self.grid))

    def _moved(self, container: int, dimension: int, coordinate: int) -> int:
        place = list(self._coordinates(container))
        place[dimension] = coordinate
        return int(np.ravel_multi_index(tuple(place), self.grid))

    def _container_cables(self) -> Iterator[tuple[int, int]]:
        for container in range(prod(self.grid)):
            for dimension, own in enumerate(self._coordinates(container)):
                for other in range(own + 1, self.grid[dimension]):
                    there = self._moved(container, dimension, other)
                    leave, enter = self._exit(dimension, own, other), self._exit(dimension, other, own)
                    yield int(self._switch(container, leave)), int(self._switch(there, enter))

    def facts(self) -> TopologyFacts:
        """Route length as the paper bounds it: D + 1 BCube walks of 2(k + 1) edges, and 3 edges per crossing."""
        cube, num_containers, dimensions = self.container, prod(self.grid), len(self.grid)
        container_cables = num_containers * self._ports_used // 2
        fast = self.gbit if self.container_gbit is None else self.container_gbit
        num_hosts = num_containers * cube.num_hosts
        pairs = [num_hosts * cube.num_hosts / side for side in self.grid]  # per cable of a dimension
        elsewhere = sum((side - 1) * each for side, each in zip(self.grid, pairs, strict=True)) - max(pairs)
        inside = (cube.num_hosts + elsewhere / self.n) * (self.n - 1) / self.n + max(pairs) / self.n
        return TopologyFacts(
            num_hosts=num_hosts,
            num_switches=num_containers * (self.k + 1) * cube.switches_per_level,
            num_cables=num_containers * cube.facts().num_cables + container_cables,
            max_edges=(dimensions + 1) * 2 * (self.k + 1) + 3 * dimensions,
            bisection_bps=least_cut_bps(num_hosts, [(max(pairs), fast * 1e9), (inside, self.gbit * 1e9)]),
            diameter_is_exact=False,
            bisection_is_exact=False,
            max_server_hops=(dimensions + 1) * (self.k + 1) + 2 * dimensions,
        )


def _without_loops(nodes: list[int]) -> list[int]:
    """Cut what lies between two visits: a walk may end under the switch that it came through."""
    kept: dict[int, None] = {}
    for node in nodes:
        while node in kept:
            kept.popitem()
        kept[node] = None
    return list(kept)
