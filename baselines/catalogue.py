"""Finds the plug-ins: every dataclass with a `card` in a module of a slot's folder.

A new file is picked up by its presence; there is no list to extend. Files outside the tree: `baselines.outside`.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType, ModuleType
from typing import Any

import baselines
from baselines import outside
from baselines.api import Card, Slot
from baselines.text import defaults_text


class CatalogueError(ValueError):
    """An unknown plug-in or a wrong parameter; the message lists what exists."""


def plugins() -> Mapping[str, type[Any]]:
    """Every plug-in class by name, those of the tree in order of slot and name, then those from outside.

    Raises: CatalogueError if two plug-ins share a name or one stands in another slot's folder; OutsideError.
    """
    return _plugins(outside.sources())


@cache
def _plugins(sources: tuple[str, ...]) -> Mapping[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for slot in Slot:
        package = importlib.import_module(f"{baselines.__name__}.{slot.value}")
        for entry in sorted(pkgutil.iter_modules(package.__path__), key=lambda e: e.name):
            module = importlib.import_module(f"{package.__name__}.{entry.name}")
            for kind in plugin_classes(module):
                if kind.card.slot is not slot:
                    raise CatalogueError(
                        f"{module.__name__}: {kind.card.name} says slot {kind.card.slot}, move the file"
                    )
                _add(found, kind)
    for source in sources:
        for kind in (kind for module in outside.plugin_modules(source) for kind in plugin_classes(module)):
            _add(found, kind)
    return MappingProxyType(found)


def _add(found: dict[str, type[Any]], kind: type[Any]) -> None:
    name = kind.card.name
    if name in found:
        raise CatalogueError(f"{kind.__module__}: the name {name!r} is taken by {found[name]}; choose another")
    found[name] = kind


def plugin_classes(module: ModuleType, card: type[Any] = Card) -> list[type[Any]]:
    """The plug-ins that a module defines itself: the dataclasses with a `card` of this class."""
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [kind for kind in own if dataclasses.is_dataclass(kind) and isinstance(getattr(kind, "card", None), card)]


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
        "parameters": defaults_text(kind),
        "kind": "executed",
    }
