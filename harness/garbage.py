"""Garbage collection around what a process keeps for good.

Importing torch makes half a million objects and no garbage. Collections on the way take a seventh of the time, and each
later one that looks through them all takes a third of a second, in a forked rank too, where it copies their pages.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting() -> Iterator[None]:
    """Do not collect within; what is there at its end is never looked through again."""
    gc.collect()  # of what was used since the last time; before the first imports that is next to nothing
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
