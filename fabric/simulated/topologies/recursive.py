"""Server-centric networks that are made of complete graphs of smaller ones: DCell and FiConn share their routing.

A network of level l joins copies of level l − 1 by one cable per pair of copies. A route between two copies goes to
the server with that cable, crosses it, and goes on inside the other copy (DCellRouting; FiConn's
traffic-oblivious routing is the same).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, hypot, prod

from fabric.simulated.graph import Cabling
from fabric.simulated.topologies.base import ROUNDING, pairs_between_halves


@dataclass(frozen=True, slots=True)
class Recursion:
    """`sizes[l]` servers at level l; `exit_of(level, copy, other)`: the server inside `copy` cabled to copy `other`."""

    sizes: tuple[int, ...]
    exit_of: Callable[[int, int, int], int]

    @property
    def num_hosts(self) -> int:
        return self.sizes[-1]

    def copies(self, level: int) -> int:
        """How many networks of level − 1 make one of `level`."""
        return self.sizes[level] // self.sizes[level - 1]

    def join(self, cabling: Cabling, gbit: float) -> None:
        """Every cable: servers to the switch of their level 0, then copies to copies, level by level."""
        ports = self.sizes[0]
        hosts = range(self.num_hosts)
        cabling.join(list(hosts), [self.num_hosts + host // ports for host in hosts], gbit)
        for level in range(1, len(self.sizes)):
            size, count = self.sizes[level - 1], self.copies(level)
            pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
            tails = [a * size + self.exit_of(level, a, b) for a, b in pairs]
            heads = [b * size + self.exit_of(level, b, a) for a, b in pairs]
            starts = range(0, self.num_hosts, self.sizes[level])
            cabling.join(
                [at + tail for at in starts for tail in tails], [at + head for at in starts for head in heads], gbit
            )

    def least_cut(self, spacing: int, num_backups: int) -> int:
        """A bound for the cables of every cut between halves A and B: |A||B| over the pairs on the fullest link; and,
        with l pairs on the fullest among copies, K ≥ (N²/4 − K²)/(num_backups·l).

        For to move the servers that differ from most of their switch, at most K, leaves `num_backups`·K cables, all
        among copies. One in `spacing`^l servers has a cable of level l, and each at most `num_backups` in all.
        """
        if len(self.sizes) == 1:
            return self.num_hosts // 2
        loads = [self._most_pairs(level, spacing) for level in range(len(self.sizes))]
        load = num_backups * max(loads[1:])
        moved = (hypot(load, self.num_hosts) - load) / 2
        return ceil(max(pairs_between_halves(self.num_hosts) / max(loads), moved) - ROUNDING)

    def _most_pairs(self, level: int, spacing: int) -> float:
        """Ordered pairs of servers that take one link of a level, at most; level 0 is a server's to its switch.

        A pair in a copy also carries what copies that the one or the other is joined to send and receive through it.
        """
        block = self.sizes[level - 1] if level else 1
        more = [
            1 + 2 * self.sizes[above - 1] * ceil(block / spacing**above) / block
            for above in range(level + 1, len(self.sizes))
        ]
        own = block**2 if level else self.sizes[0] - 1
        return float(own * prod(more))

    def path(self, source: int, destination: int, via: int = 0) -> list[int]:
        """Nodes of the route; `via` = v > 0 goes round by the v-th other copy of the level where the two part."""
        level = self._level(source, destination)
        if level == 0:
            return [source, self.num_hosts + source // self.sizes[0], destination]
        size = self.sizes[level - 1]
        here, there = source // size, destination // size
        if via:
            start = source // self.sizes[level] * self.copies(level)
            others = [copy for copy in range(start, start + self.copies(level)) if copy not in (here, there)]
            if others:
                middle = others[(via - 1) % len(others)]
                entry, leave = self._cable(level, here, middle)
                onward, arrival = self._cable(level, middle, there)
                first = self._joined(source, entry, leave, onward)
                return self._joined_on(first, onward, arrival, destination)
        leave, entry = self._cable(level, here, there)
        return self._joined(source, leave, entry, destination)

    def _cable(self, level: int, here: int, there: int) -> tuple[int, int]:
        """The servers (here's, there's) at the ends of the cable between two copies, by their global numbers."""
        size, count = self.sizes[level - 1], self.copies(level)
        a, b = here % count, there % count
        return here * size + self.exit_of(level, a, b), there * size + self.exit_of(level, b, a)

    def _joined(self, source: int, leave: int, entry: int, destination: int) -> list[int]:
        before = [source] if source == leave else self.path(source, leave)
        after = [entry] if entry == destination else self.path(entry, destination)
        return before + after

    def _joined_on(self, before: list[int], onward: int, arrival: int, destination: int) -> list[int]:
        assert before[-1] == onward
        return before + ([arrival] if arrival == destination else self.path(arrival, destination))

    def _level(self, source: int, destination: int) -> int:
        """The lowest level whose network holds both."""
        return next(level for level, size in enumerate(self.sizes) if source // size == destination // size)
