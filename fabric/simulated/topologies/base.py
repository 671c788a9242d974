"""What every topology offers: to be built, and the facts that its paper states in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from fabric.simulated.graph import NetworkError, NetworkGraph

ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class TopologyFacts:
    """Closed-form counts. `max_edges` is the longest route in cables, `max_server_hops` in hops from server to server.

    `bisection_bps` is the least cut between two halves of the hosts, one way; of an odd number one half has one more.
    Where it is not exact, no cut is less.
    """

    num_hosts: int
    num_switches: int
    num_cables: int
    max_edges: int
    bisection_bps: float
    diameter_is_exact: bool = True
    bisection_is_exact: bool = True
    max_server_hops: int = 1


class Topology(Protocol):
    """Parameters of a network; frozen, checked when made."""

    def build(self) -> NetworkGraph:
        """The network as a graph."""

    def facts(self) -> TopologyFacts:
        """What the paper says of it in closed form."""


def least_cut_bps(num_hosts: int, loads: Sequence[tuple[float, float]]) -> float:
    """A bound for every cut between halves A and B, from (pairs, bit/s) of each kind of link.

    Some routing leads no more than this number of ordered pairs of hosts over any link of the kind. |A||B| of them
    cross a cut of c bit/s, so c ≥ |A||B|·min(bit/s / pairs).
    """
    least = min(pairs_between_halves(num_hosts) * rate_bps / pairs for pairs, rate_bps in loads)
    return whole_cables(least, [rate_bps for _, rate_bps in loads])


def pairs_between_halves(num_hosts: int) -> int:
    """|A||B|."""
    return num_hosts // 2 * ((num_hosts + 1) // 2)


def whole_cables(bound_bps: float, rates_bps: Sequence[float]) -> float:
    """The bound, raised to the next number of whole cables where all have one rate."""
    rate_bps = rates_bps[0]
    return ceil(bound_bps / rate_bps - ROUNDING) * rate_bps if len(set(rates_bps)) == 1 else bound_bps


def require(holds: bool, problem: str, remedy: str) -> None:
    """Raise a NetworkError of `problem; remedy` unless `holds`."""
    if not holds:
        raise NetworkError(f"{problem}; {remedy}")
