"""What every topology offers: to be built, and the facts that its paper states in closed form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fabric.simulated.graph import NetworkError, NetworkGraph


@dataclass(frozen=True, slots=True)
class TopologyFacts:
    """Closed-form counts. Bounds stand where the paper proves no more; `bisection_cables` counts one direction.

    `max_edges` is the longest route in cables, `max_server_hops` in hops from server to server.
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


def require(holds: bool, problem: str, remedy: str) -> None:
    """Raise a NetworkError of `problem; remedy` unless `holds`."""
    if not holds:
        raise NetworkError(f"{problem}; {remedy}")
