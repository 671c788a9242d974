"""Finds the suites: every folder here, or of the user's own plug-ins, with a `grid.py` that defines `SUITE`.

A `study.py` beside it defines `STUDY`: what the suite claims and asks of its records.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType

import suites
from analysis.study import Study
from baselines import outside
from suites.api import Suite


class SuiteError(ValueError):
    """An unknown suite, or one that is not complete; the message lists those there are."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A suite with its study; a suite without one claims nothing."""

    suite: Suite
    study: Study


def all_suites() -> Mapping[str, Suite]:
    """Every suite by name. Raises: SuiteError, OutsideError."""
    return MappingProxyType({name: entry.suite for name, entry in _entries(outside.sources()).items()})


def all_studies() -> tuple[Study, ...]:
    """What every suite asks of its records. Raises: SuiteError, OutsideError."""
    return tuple(entry.study for entry in _entries(outside.sources()).values())


def suite_of(name: str) -> Suite:
    """The suite called `name`. Raises: SuiteError."""
    found = all_suites()
    if name not in found:
        raise SuiteError(f"unknown suite {name!r}; there are: {', '.join(found)}")
    return found[name]


@cache
def _entries(sources: tuple[str, ...]) -> Mapping[str, Entry]:
    own = [
        (importlib.import_module(f"suites.{folder.name}.grid"), _study_of(folder))
        for folder in sorted(grid.parent for grid in Path(suites.__path__[0]).glob("*/grid.py"))
    ]
    found: dict[str, Entry] = {}
    for grid, study in (*own, *(one for source in sources for one in outside.suite_modules(source))):
        entry = _entry(grid, study)
        if entry.suite.name in found:
            raise SuiteError(f"{grid.__name__}: there is a suite {entry.suite.name!r} already; choose another name")
        found[entry.suite.name] = entry
    return MappingProxyType(found)


def _study_of(folder: Path) -> ModuleType | None:
    return importlib.import_module(f"suites.{folder.name}.study") if (folder / "study.py").exists() else None


def _entry(grid: ModuleType, study: ModuleType | None) -> Entry:
    suite = getattr(grid, "SUITE", None)
    if not isinstance(suite, Suite):
        raise SuiteError(f"{grid.__name__} defines no SUITE; write SUITE = Suite(name=…, question=…, grid=…)")
    if study is None:
        return Entry(suite, Study(suite=suite.name, question=suite.question))
    declared = getattr(study, "STUDY", None)
    if not isinstance(declared, Study) or declared.suite != suite.name:
        raise SuiteError(f"{study.__name__} defines no STUDY of the suite {suite.name!r}; write STUDY = Study(suite=…)")
    return Entry(suite, replace(declared, question=suite.question))
