"""The schedules and planners by name: every dataclass with a card in a file of this folder. Nothing lists them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import baselines.parallelism
from baselines.catalogue import plugin_classes
from baselines.parallelism.api import ParallelCard, ParallelismError, PipelineSchedule
from baselines.parallelism.plans import Planner
from baselines.text import build, defaults_text, read_call


@cache
def planners() -> Mapping[str, type[Any]]:
    """Every planner's class by name: the dataclasses with a card and a `plan`."""
    return _found("plan")


@cache
def schedules() -> Mapping[str, type[Any]]:
    """Every schedule's class by name: those with a card and `actions`."""
    return _found("actions")


def schedule_of(text: str) -> PipelineSchedule:
    """The schedule that a text names, e.g. `gpipe(recompute=True)`.

    Raises: ParallelismError for an unknown one, TextError for a wrong parameter.
    """
    made: PipelineSchedule = _made(text, schedules(), "schedule")
    return made


def planner_of(text: str) -> Planner:
    """The planner that a text names, e.g. `flexflow(num_steps=1000)`.

    Raises: ParallelismError for an unknown one, TextError for a wrong parameter.
    """
    made: Planner = _made(text, planners(), "planner")
    return made


def _made(text: str, kinds: Mapping[str, type[Any]], kind: str) -> Any:
    name, arguments = read_call(text)
    if name not in kinds:
        raise ParallelismError(f"unknown {kind} {name!r}; there are {', '.join(kinds)}")
    return build(kinds[name], arguments)


def rows_of(kinds: Mapping[str, type[Any]]) -> list[dict[str, str]]:
    """What a catalogue says of each: name, summary, paper and parameters with their defaults."""
    return [
        {
            "name": name,
            "summary": kind.card.summary,
            "paper": kind.card.paper,
            "parameters": defaults_text(kind),
        }
        for name, kind in kinds.items()
    ]


def _found(method: str) -> Mapping[str, type[Any]]:
    entries = pkgutil.walk_packages(baselines.parallelism.__path__, f"{baselines.parallelism.__name__}.")
    modules = (importlib.import_module(entry.name) for entry in entries)
    kinds = (kind for module in modules for kind in plugin_classes(module, ParallelCard) if hasattr(kind, method))
    return MappingProxyType({kind.card.name: kind for kind in sorted(kinds, key=lambda kind: kind.card.name)})
