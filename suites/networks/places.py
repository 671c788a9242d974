"""The networks of the suite, by family and number of ranks: every port at one rate, so that shapes alone differ."""

from __future__ import annotations

from collections.abc import Mapping

from fabric.api import HostChoice, NetworkSpec, Paths

GBIT = 25
SIZES = (16, 128, 1024)  # ranks; where a family has no such number of servers, on the first ones of the next larger
MIDDLE = SIZES.index(128)
DRAWS = range(1, 7)  # of hosts at random
PORTS = f"gbit={GBIT}"

FAMILIES: Mapping[str, tuple[str, str, str]] = {
    "fat-tree": (f"fat-tree(k=4, {PORTS})", f"fat-tree(k=8, {PORTS})", f"fat-tree(k=16, {PORTS})"),
    "leaf-spine": (
        f"leaf-spine(leaves=4, spines=4, hosts_per_leaf=4, {PORTS})",
        f"leaf-spine(leaves=8, spines=16, hosts_per_leaf=16, {PORTS})",
        f"leaf-spine(leaves=32, spines=32, hosts_per_leaf=32, {PORTS})",
    ),
    "leaf-spine-4to1": (
        f"leaf-spine(leaves=4, spines=1, hosts_per_leaf=4, {PORTS})",
        f"leaf-spine(leaves=8, spines=4, hosts_per_leaf=16, {PORTS})",
        f"leaf-spine(leaves=32, spines=8, hosts_per_leaf=32, {PORTS})",
    ),
    "vl2": (
        f"vl2(aggregation_ports=4, intermediate_ports=4, {PORTS})",
        f"vl2(aggregation_ports=8, intermediate_ports=4, {PORTS})",
        f"vl2(aggregation_ports=16, intermediate_ports=16, {PORTS})",
    ),
    "bcube": (f"bcube(n=4, k=1, {PORTS})", f"bcube(n=12, k=1, {PORTS})", f"bcube(n=32, k=1, {PORTS})"),
    "dcell": (f"dcell(n=4, k=1, {PORTS})", f"dcell(n=11, k=1, {PORTS})", f"dcell(n=32, k=1, {PORTS})"),
    "ficonn": (f"ficonn(n=6, k=1, {PORTS})", f"ficonn(n=16, k=1, {PORTS})", f"ficonn(n=46, k=1, {PORTS})"),
    "mdcube": (
        f"mdcube(n=2, k=1, grid=(4,), {PORTS})",
        f"mdcube(n=4, k=1, grid=(3, 3), {PORTS})",
        f"mdcube(n=8, k=1, grid=(4, 4), {PORTS})",
    ),
    "torus": (f"torus(sides=(4, 4), {PORTS})", f"torus(sides=(8, 16), {PORTS})", f"torus(sides=(8, 8, 16), {PORTS})"),
}


def random_fat_tree(paths: Paths, draw: int) -> NetworkSpec:
    """128 hosts with full bisection, and ranks on any of them."""
    topology = FAMILIES["fat-tree"][MIDDLE]
    return NetworkSpec(topology=topology, placement=HostChoice.RANDOM, paths=paths, seed=draw)
