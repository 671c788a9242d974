"""Finds the plug-ins: every dataclass with a `card` in a module of a slot's folder.

A new file is picked up by its presence; there is no list to extend.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import baselines
from baselines.api import Slot
from baselines.text import settable_fields


class CatalogueError(ValueError):
    """An unknown plug-in or a wrong parameter; the message lists what exists."""


@cache
def plugins() -> Mapping[str, type[Any]]:
    """Every plug-in class by name, in order of slot and name.

    Raises: CatalogueError if two plug-ins share a name or one stands in another slot's folder.
    """
    found: dict[str, type[Any]] = {}
    for slot in Slot:
        package = importlib.import_module(f"{baselines.__name__}.{slot.value}")
        for entry in sorted(pkgutil.iter_modules(package.__path__), key=lambda e: e.name):
            module = importlib.import_module(f"{package.__name__}.{entry.name}")
            for kind in _plugin_classes(module):
                if kind.card.slot is not slot:
                    raise CatalogueError(
                        f"{module.__name__}: {kind.card.name} says slot {kind.card.slot}, move the file"
                    )
                if kind.card.name in found:
                    raise CatalogueError(
                        f"{module.__name__}: the name {kind.card.name!r} is taken by {found[kind.card.name]}"
                    )
                found[kind.card.name] = kind
    return MappingProxyType(found)


def _plugin_classes(module: Any) -> list[type[Any]]:
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [kind for kind in own if dataclasses.is_dataclass(kind) and hasattr(kind, "card")]


def plugin(name: str) -> type[Any]:
    """The class of the plug-in called `name`. Raises: CatalogueError listing the names."""
    try:
        return plugins()[name]
    except KeyError:
        raise CatalogueError(f"unknown baseline {name!r}; known: {', '.join(plugins())}") from None


def summary_of(kind: type[Any]) -> dict[str, str]:
    """A catalogue row: name, slot, summary, paper, parameters with their defaults."""
    card = kind.card
    return {
        "name": card.name,
        "slot": card.slot.value,
        "summary": card.summary,
        "paper": card.paper,
        "parameters": ", ".join(f"{name}={default!r}" for name, default in settable_fields(kind).items()),
        "kind": "executed",
    }
