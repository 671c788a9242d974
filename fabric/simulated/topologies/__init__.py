"""Topologies by name: `parse_topology("fat-tree(k=8, gbit=25)").build()`."""

from __future__ import annotations

from typing import Any

from fabric.simulated.named import parse_named
from fabric.simulated.topologies.base import Topology, TopologyFacts
from fabric.simulated.topologies.bcube import BCube
from fabric.simulated.topologies.dcell import DCell
from fabric.simulated.topologies.fat_tree import FatTree
from fabric.simulated.topologies.ficonn import FiConn
from fabric.simulated.topologies.leaf_spine import LeafSpine
from fabric.simulated.topologies.mdcube import MdCube
from fabric.simulated.topologies.switch_ring import SwitchRing
from fabric.simulated.topologies.torus import Torus
from fabric.simulated.topologies.vl2 import Vl2

__all__ = [
    "TOPOLOGIES",
    "BCube",
    "DCell",
    "FatTree",
    "FiConn",
    "LeafSpine",
    "MdCube",
    "SwitchRing",
    "Topology",
    "TopologyFacts",
    "Torus",
    "Vl2",
    "parse_topology",
]

TOPOLOGIES: dict[str, type[Any]] = {
    "bcube": BCube,
    "dcell": DCell,
    "fat-tree": FatTree,
    "ficonn": FiConn,
    "leaf-spine": LeafSpine,
    "mdcube": MdCube,
    "switch-ring": SwitchRing,
    "torus": Torus,
    "vl2": Vl2,
}


def parse_topology(text: str) -> Topology:
    """Read `name` or `name(parameter=value, …)`. Raises: NetworkError, which names what there is."""
    topology: Topology = parse_named(text, TOPOLOGIES, "topology")
    return topology
