"""Compiled functions of the simulated network, and the one cache that is safe for them.

numba caches a function under the digest of its own file. The packet loop inlines functions of a dozen other files, and
an edit of one of those would leave the old machine code in use. `entry_point` therefore stamps the cache with a digest
of every source file of this package. Functions that are only called by compiled ones need no cache: `inlined`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def inlined(function: Function) -> Function:
    """Compile a function that only compiled functions call, or tests."""
    return cast(Function, njit(nogil=True)(function))


def entry_point(function: Function) -> Function:
    """Compile a function that Python calls; its machine code is cached until any file of this package changes."""
    dispatcher: Any = njit(nogil=True, cache=True)(function)
    dispatcher._cache._cache_file._source_stamp = source_digest()
    return cast(Function, dispatcher)


@cache
def source_digest() -> str:
    """A digest of all Python files of this package."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
