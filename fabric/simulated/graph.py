"""A network as a graph: hosts and switches, cables with rate and delay, and the links that are their directions.

Nodes 0 … num_hosts − 1 are hosts, the rest switches. Cable c joins `ends[c]`; link 2c leads from its first end to its
second, link 2c + 1 back. Failures keep all numbers: a failed cable is only no longer `up`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


class NetworkError(ValueError):
    """A network, a route or a job that cannot be; the message names the value and the remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class PathSet:
    """Paths of flows as links: flow f takes `links[offsets[f] : offsets[f + 1]]`, in order."""

    offsets: Ints  # [flows + 1]
    links: Ints

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, flow: int) -> Ints:
        return self.links[self.offsets[flow] : self.offsets[flow + 1]]

    @classmethod
    def of(cls, paths: Sequence[Sequence[int]]) -> PathSet:
        """Pack lists of links."""
        lengths = np.fromiter((len(path) for path in paths), np.int64, len(paths))
        links = np.fromiter((link for path in paths for link in path), np.int64, int(lengths.sum()))
        return cls(np.concatenate([np.zeros(1, np.int64), lengths.cumsum()]), links)


class Routing(Protocol):
    """How a network sends: all flows at once, each with a number that settles what the rules leave open.

    Numbers from 0 on are hashed, or wrap around. −1, −2, … are a pair's paths one after the other, and wrap around.
    """

    def num_paths(self, graph: NetworkGraph, sources: Ints, destinations: Ints) -> int:
        """How many paths the pair that has most of them has. Raises: NetworkError if failures leave a pair none."""
        ...

    def paths(self, graph: NetworkGraph, sources: Ints, destinations: Ints, choices: Ints) -> PathSet:
        """The links of each flow's path. Raises: NetworkError if failures leave a flow without one."""


@dataclass(frozen=True, slots=True, eq=False)
class NetworkGraph:
    """A built topology. Rates are bit/s per direction of a cable, delays are seconds of propagation.

    `neighbours[first[v] : first[v + 1]]` are the nodes next to v, `links` (same slice) the links to them.
    """

    name: str
    num_hosts: int
    num_switches: int
    ends: Ints  # [cables, 2]
    rate_bps: Floats  # [cables]
    delay_s: Floats  # [cables]
    up: Bools  # [cables]
    routing: Routing
    first: Ints = field(repr=False)  # [nodes + 1]
    neighbours: Ints = field(repr=False)  # [2 · cables]
    links: Ints = field(repr=False)  # [2 · cables]

    @property
    def num_nodes(self) -> int:
        """Hosts and switches."""
        return self.num_hosts + self.num_switches

    @property
    def num_cables(self) -> int:
        """Cables, failed ones included."""
        return len(self.ends)

    @property
    def link_rate_bps(self) -> Floats:
        """Rates of the links [2 · cables]; 0 where the cable has failed."""
        return np.repeat(np.where(self.up, self.rate_bps, 0.0), 2)

    @property
    def heads(self) -> Ints:
        """The node to which each link leads [2 · cables]."""
        return self.ends[:, ::-1].reshape(-1)

    def link(self, tail: int, head: int) -> int:
        """The link from `tail` to `head`; NetworkError where no cable joins them."""
        for place in range(self.first[tail], self.first[tail + 1]):
            if self.neighbours[place] == head:
                return int(self.links[place])
        raise NetworkError(f"no cable joins nodes {tail} and {head} of {self.name}; ask `ends` for those that are")

    def without(self, cables: Iterable[int] = (), switches: Iterable[int] = ()) -> NetworkGraph:
        """The same network after failures of `cables` and of all cables of `switches` (node numbers)."""
        up = self.up.copy()
        for cable in cables:
            if not 0 <= cable < self.num_cables:
                raise NetworkError(f"cable {cable} cannot fail: {self.name} has cables 0 to {self.num_cables - 1}")
            up[cable] = False
        for switch in switches:
            if not self.num_hosts <= switch < self.num_nodes:
                raise NetworkError(
                    f"node {switch} is no switch of {self.name}; use {self.num_hosts} to {self.num_nodes - 1}"
                )
            up[(self.ends == switch).any(axis=1)] = False
        return replace(self, up=up)


class Cabling:
    """Collects cables while a topology is built; `graph` makes the network."""

    def __init__(self) -> None:
        self._ends: list[Ints] = []
        self._rates: list[Floats] = []

    def join(self, tails: Sequence[int] | Ints, heads: Sequence[int] | Ints, gbit: float) -> None:
        """Cables from each of `tails` to the head at the same place, `gbit` Gbit/s per direction."""
        if not gbit > 0.0:
            raise NetworkError(f"a link of {gbit} Gbit/s carries nothing; use a rate above 0, e.g. 10")
        self._ends.append(np.stack([np.asarray(tails, np.int64), np.asarray(heads, np.int64)], axis=1))
        self._rates.append(np.full(len(tails), gbit * 1e9))

    def graph(self, name: str, num_hosts: int, num_switches: int, delay_us: float, routing: Routing) -> NetworkGraph:
        """The network of all cables joined so far, each with `delay_us` µs of propagation."""
        if delay_us < 0.0:
            raise NetworkError(f"a delay of {delay_us} µs lies in the past; use 0 or more")
        ends = np.concatenate(self._ends) if self._ends else np.zeros((0, 2), np.int64)
        tails, heads = ends.reshape(-1), ends[:, ::-1].reshape(-1)
        order = np.argsort(tails, kind="stable")
        num_nodes = num_hosts + num_switches
        return NetworkGraph(
            name=name,
            num_hosts=num_hosts,
            num_switches=num_switches,
            ends=ends,
            rate_bps=np.concatenate(self._rates) if self._rates else np.zeros(0),
            delay_s=np.full(len(ends), delay_us * 1e-6),
            up=np.ones(len(ends), np.bool_),
            routing=routing,
            first=np.searchsorted(tails[order], np.arange(num_nodes + 1)).astype(np.int64),
            neighbours=heads[order],
            links=order.astype(np.int64),
        )
