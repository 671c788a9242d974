"""Paces a script that imports torch, if CROSSOVER_BENCH_PACE says so.

With this folder in PYTHONPATH torch finds the entry point beside this file (group `torch.backends`, torch 2.5 and
later) and calls `load` at the end of its import. The project's modules have plain names (`models`, `harness`), which a
script may have too. So they are imported out of the script's sight, and its own ones stay what they are.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "CROSSOVER_BENCH_PACE"
ROOT = Path(__file__).resolve().parents[3]
PACKAGES = frozenset({"baselines", "crossover", "fabric", "harness", "models", "results"})


def load() -> None:
    """torch's call. Raises: ValueError if the variable is wrong."""
    # Installed beside torch it is called by every script; only those that ask are paced.
    if VARIABLE not in os.environ:
        return
    with _out_of_sight():
        settings = importlib.import_module("harness.paced.settings")
        pace = settings.parse_pace(os.environ[VARIABLE])
        importlib.import_module("harness.paced.script").install(pace)


@contextmanager
def _out_of_sight() -> Iterator[None]:
    """Within, the project's modules are found; afterwards nobody finds them."""
    # The script's own `models` or `harness` must neither be taken for the project's nor be lost.
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in PACKAGES}
    sys.path.insert(0, str(ROOT))
    try:
        yield
    finally:
        sys.path.remove(str(ROOT))
        for name in list(sys.modules):
            if name.partition(".")[0] in PACKAGES:
                del sys.modules[name]
        sys.modules.update(hidden)
