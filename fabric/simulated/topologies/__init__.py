"""Topologies by name: `parse_topology("fat-tree(k=8, gbit=25)").build()`."""

from __future__ import annotations

import ast
from dataclasses import fields
from typing import Any

from fabric.simulated.graph import NetworkError
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
    """Read `name` or `name(parameter=value, …)`, values being numbers or tuples of numbers.

    NetworkError names an unknown topology or parameter and those that exist.
    """
    name, _, rest = text.strip().partition("(")
    if name.strip() not in TOPOLOGIES:
        raise NetworkError(f"{name!r} is no topology; use one of {', '.join(TOPOLOGIES)}")
    kind = TOPOLOGIES[name.strip()]
    known = [field.name for field in fields(kind)]
    try:
        call = ast.parse(f"f({rest}" if rest else "f()", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("parameters have names")
        values = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise NetworkError(f"{text!r} cannot be read; write it like {name}({known[0]}=4)") from error
    if unknown := sorted(set(values) - set(known)):
        raise NetworkError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(known)}")
    topology: Topology = kind(**values)
    return topology
