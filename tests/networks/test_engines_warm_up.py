"""What set-up compiles is all that a first run needs."""

import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core.caching import NullCache
from numba.core.dispatcher import Dispatcher

import fabric.simulated
from fabric.simulated.packet import PacketFlow, simulate_packets
from fabric.simulated.topologies import FatTree
from fabric.simulated.warm_up import warm_up

pytestmark = pytest.mark.slow

SET_UP = Path(__file__).resolve().parents[2] / "scripts" / "setup.py"


def entry_points() -> Iterator[Dispatcher]:
    """Every cached compiled function of the package."""
    for module in pkgutil.walk_packages(fabric.simulated.__path__, "fabric.simulated."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Dispatcher) and not isinstance(value._cache, NullCache):
                yield value


def test_every_entry_point_is_compiled_once_and_for_all_transports() -> None:
    warm_up()
    found = {point.py_func.__qualname__: point for point in entry_points()}
    assert {"run_until", "_run", "_equal_cost", "_fill_all"} <= set(found)
    before = {name: tuple(point.signatures) for name, point in found.items()}
    assert all(before.values())
    # HPCC's telemetry and a fat-tree's paths are other arrays of the same types
    simulate_packets(FatTree(4).build(), [PacketFlow(1, 0, 1e4, name) for name in ("hpcc", "irn", "dctcp")])
    assert {name: tuple(point.signatures) for name, point in found.items()} == before


@pytest.mark.parametrize("module", ["baselines.kernels", "fabric.simulated.warm_up"])
def test_set_up_compiles_both_packages(module: str) -> None:
    assert f"from {module} import warm_up; warm_up()" in SET_UP.read_text(encoding="utf-8")
