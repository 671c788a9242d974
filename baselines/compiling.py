"""Compiled functions whose compiler is loaded with their first call.

numba takes half a second and 50 MB to import, which only those should pay who compress. `@compiled()` stands for
`numba.njit(cache=True, nogil=True)`. The first call of any of a module's functions puts numba's in their places, all of
that module at once, since they call each other by their global names; later calls go straight to numba.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
_loading = threading.Lock()


def compiled(**options: Any) -> Callable[[Function], Function]:
    """A decorator for functions of a module's top level; `options` are further ones of `numba.njit`."""

    def wait(function: Function) -> Function:
        return cast(Function, _Waiting(function, options))

    return wait


class _Waiting:
    """Stands in a module for a function until one of that module's is called."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self.py_func, self.options, self.__doc__ = function, options, function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        module: dict[str, Any] = self.py_func.__globals__
        with _loading:
            _load(module)
        return module[self.py_func.__name__](*arguments)


def _load(module: dict[str, Any]) -> None:
    from numba import njit

    waiting = {name: own for name, own in module.items() if isinstance(own, _Waiting)}
    ready = {name: njit(cache=True, nogil=True, **own.options)(own.py_func) for name, own in waiting.items()}
    module.update(ready)  # in one step: another thread must not find half of them
