"""A 4-ary heap of (key, code) in two arrays: half the depth of a binary one, and children share a cache line.

The caller keeps the size. Keys may be integers or floats; among equal keys the order is fixed but not by age.
"""

from __future__ import annotations

from typing import Any

from fabric.simulated.compiled import inlined
from fabric.simulated.graph import Ints

ARITY = 4


@inlined
def push(keys: Any, codes: Ints, size: int, key: float, code: int) -> int:
    """Add an entry; return the new size. The arrays must have room."""
    place = size
    while place > 0:
        parent = (place - 1) // ARITY
        if keys[parent] <= key:
            break
        keys[place], codes[place] = keys[parent], codes[parent]
        place = parent
    keys[place], codes[place] = key, code
    return size + 1


@inlined
def drop_first(keys: Any, codes: Ints, size: int) -> int:
    """Remove the entry with the least key (read it at 0 before); return the new size."""
    size -= 1
    key, code = keys[size], codes[size]
    place = 0
    while True:
        child = ARITY * place + 1
        if child >= size:
            break
        least = child
        for other in range(child + 1, min(child + ARITY, size)):
            if keys[other] < keys[least]:
                least = other
        if keys[least] >= key:
            break
        keys[place], codes[place] = keys[least], codes[least]
        place = least
    keys[place], codes[place] = key, code
    return size
