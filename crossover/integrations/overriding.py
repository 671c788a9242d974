"""Methods of single objects, replaced for a time: classes and modules of the framework stay as they are.

A replaced method may be wrapped by others in the meantime (learning-rate schedulers wrap `step`); then it cannot be put
back, and the replacement passes every call through from then on.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

_ABSENT = object()


class Overrides:
    """What was replaced, so that it can be undone."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._is_active = True

    def replace(self, owner: Any, name: str, method: Callable[..., Any]) -> None:
        """Let `owner.name(...)` call `method(inner, ...)`, where `inner` is what was there before."""
        inner = getattr(owner, name)
        before = vars(owner).get(name, _ABSENT)

        @functools.wraps(inner)
        def replacement(_: Any, *args: Any, **kwargs: Any) -> Any:
            return method(inner, *args, **kwargs) if self._is_active else inner(*args, **kwargs)

        # A bound method, because learning-rate schedulers look for its __func__ and for marks on it.
        bound = types.MethodType(replacement, owner)
        self._replaced.append((owner, name, before, bound))
        setattr(owner, name, bound)

    def before(self, owner: Any, name: str, call: Callable[[], None]) -> None:
        """Run `call` before each `owner.name(...)`."""

        def first(inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            call()
            return inner(*args, **kwargs)

        self.replace(owner, name, first)

    def names_on(self, owner: Any) -> set[str]:
        """The attributes of `owner` that exist for a replacement only."""
        return {name for other, name, before, _ in self._replaced if other is owner and before is _ABSENT}

    def undo(self) -> None:
        """Put everything back, last first; where somebody else has wrapped it, pass calls through."""
        self._is_active = False
        while self._replaced:
            owner, name, before, bound = self._replaced.pop()
            if vars(owner).get(name) is not bound:
                continue
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
