"""The systems, one file each; a new file with a dataclass that has a `card` is picked up."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from baselines.catalogue import CatalogueError
from baselines.text import build, read_call
from harness.systems.api import System, SystemCard


@cache
def systems() -> Mapping[str, type[Any]]:
    """Every system class by name."""
    found: dict[str, type[Any]] = {}
    for entry in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{entry.name}")
        for kind in vars(module).values():
            card = getattr(kind, "card", None)
            if dataclasses.is_dataclass(kind) and isinstance(kind, type) and isinstance(card, SystemCard):
                found[card.name] = kind
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
