"""The systems, one file each; a new file with a dataclass that has a `card` is picked up."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from baselines import outside
from baselines.catalogue import CatalogueError, plugin_classes
from baselines.text import build, read_call
from harness.systems.api import System, SystemCard


def systems() -> Mapping[str, type[Any]]:
    """Every system class by name, those from outside the tree too. Raises: CatalogueError, OutsideError."""
    return _systems(outside.sources())


@cache
def _systems(sources: tuple[str, ...]) -> Mapping[str, type[Any]]:
    own = [importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__)]
    found: dict[str, type[Any]] = {}
    for module in (*own, *(module for source in sources for module in outside.plugin_modules(source))):
        for kind in plugin_classes(module, SystemCard):
            if found.setdefault(kind.card.name, kind) is not kind:
                raise CatalogueError(f"{module.__name__}: the name {kind.card.name!r} is taken; choose another")
    return MappingProxyType(found)


def system_of(text: str) -> System:
    """The system that a text names, e.g. `horovod(cycle_s=0.005)`.

    Raises: CatalogueError for an unknown one, TextError for a wrong parameter.
    """
    name, arguments = read_call(text)
    if name not in systems():
        raise CatalogueError(f"unknown system {name!r}; known: {', '.join(systems())}")
    made: System = build(systems()[name], arguments)
    return made
