"""Compiled functions of the simulated network, and the one cache that is safe for them.

numba caches a function under the digest of its own file. The packet loop inlines functions of a dozen other files, and
an edit of one of those would leave the old machine code in use. `entry_point` therefore stamps the cache with a digest
of every source file that compiled code comes from. Functions that only compiled ones call need no cache: `inlined`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

CONSTANTS = ("engine", "transports", "switches")
njit: Any = numba.njit  # its types do not know `_nrt`

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """Compile a function that only compiled functions call, and that makes no arrays.

    It counts no references: the state is a tuple of fifteen arrays, and to count them at every call took four fifths
    of the packet engine's time.
    """
    return cast(Function, njit(nogil=True, _nrt=False)(function))


def entry_point(*, allocates: bool) -> Callable[[Function], Function]:
    """Compile a function that Python calls; its machine code is cached until a file of `source_digest` changes.

    One that makes no arrays says so, and counts no references.
    """

    def compile_it(function: Function) -> Function:
        dispatcher = njit(nogil=True, cache=True, _nrt=allocates)(function)
        dispatcher._cache._cache_file._source_stamp = source_digest()
        return cast(Function, dispatcher)

    return compile_it


@cache
def source_digest() -> str:
    """A digest of the files of this package that compile something, and of those whose constants they take."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        source = path.read_bytes()
        if __name__.encode() in source or {path.parent.name, path.stem} & set(CONSTANTS) or path == Path(__file__):
            digest.update(source)
    return digest.hexdigest()
