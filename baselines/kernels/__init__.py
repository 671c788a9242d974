"""Kernels that compressors share: pure functions of tensors, without state, clocks or networks.

On the CPU they are compiled by numba for one thread (no threading layer, the interpreter lock released), elsewhere
they are vectorised torch operations with the same results. Compiled code is cached beside the source, or in the
user's cache folder where that is read-only. Each module has a function `warm_up` that calls its kernels once on a few
elements of each type; `warm_up` here calls them all, so that ranks forked afterwards neither compile nor wait for a
lock that a thread held at the fork.
"""

from __future__ import annotations

import importlib
import pkgutil


def warm_up() -> None:
    """Compile every kernel of this package, or load it from the cache. Call it before forking ranks."""
    for entry in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{entry.name}").warm_up()
