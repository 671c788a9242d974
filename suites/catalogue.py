"""Finds the suites: every folder here with a `grid.py` that defines `SUITE`."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import suites
from suites.api import Suite


class SuiteError(ValueError):
    """An unknown suite; the message lists those there are."""


@cache
def all_suites() -> dict[str, Suite]:
    """Every suite by name."""
    root = Path(suites.__path__[0])
    folders = sorted(grid.parent.name for grid in root.glob("*/grid.py"))
    found = [importlib.import_module(f"suites.{folder}.grid").SUITE for folder in folders]
    return {suite.name: suite for suite in found}


def suite_of(name: str) -> Suite:
    """The suite called `name`. Raises: SuiteError."""
    try:
        return all_suites()[name]
    except KeyError:
        raise SuiteError(f"unknown suite {name!r}; there are: {', '.join(all_suites())}") from None
