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

    def let_copies_be_without(self, module: Any, hook_ids: set[int], before: Callable[[], None] | None = None) -> None:
        """Deep copies and pickles of a torch module are as if nothing had been replaced on it, and without these hooks.
        `before` runs in front of each."""

        def reduce(inner: Callable[..., Any], *args: Any) -> Any:
            if before is not None:
                before()
            how, what, state, *others = inner(*args)
            return how, what, _without(state, self.names_on(module), hook_ids), *others

        self.replace(module, "__reduce_ex__", reduce)

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


def _without(state: Any, names: set[str], hook_ids: set[int]) -> Any:
    """A module's state without these attributes and hooks."""
    if not isinstance(state, dict):
        return state
    kept = {name: value for name, value in state.items() if name not in names}
    for name, value in kept.items():
        if "_hooks" in name and isinstance(value, dict):
            kept[name] = type(value)((key, hook) for key, hook in value.items() if key not in hook_ids)
    return kept
