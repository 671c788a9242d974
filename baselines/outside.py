"""Plug-ins and suites that live outside the checkout: folders that the user names, and installed packages.

A folder is named by `--plugins DIR` of the command line, which every process of a run finds in the environment variable
`CROSSOVER_BENCH_PLUGINS` (several with the path separator between). A package names itself in its entry points, in the
group `crossover_bench.plugins`. Both are laid out alike: every `*.py` file may hold plug-ins of any slot and systems,
every sub-folder with a `grid.py` is a suite.
"""

from __future__ import annotations

import importlib
import os
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

VARIABLE = "CROSSOVER_BENCH_PLUGINS"
GROUP = "crossover_bench.plugins"
_ROOT = "crossover_bench_plugins"  # the package under which folders are imported


class OutsideError(ValueError):
    """A folder or package of plug-ins that cannot be used; the message names it and the remedy."""


def use(folders: tuple[Path, ...]) -> None:
    """Look for plug-ins in these folders too, in this process and in those that it starts. Raises: OutsideError."""
    before = _named()
    asked = [*((f"{VARIABLE}=", Path(own)) for own in before), *(("--plugins ", own) for own in folders)]
    for option, folder in asked:
        if not folder.is_dir():
            raise OutsideError(f"{option}{folder}: no such folder; name one with files of plug-ins in it")
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys([*before, *(str(own.resolve()) for own in folders)]))


def sources() -> tuple[str, ...]:
    """The packages to look into: a name for each folder in use, then installed ones. Cheap enough to be asked often."""
    return (*map(_package_of, _named()), *_installed())


def _named() -> list[str]:
    """The folders of the environment variable."""
    return [folder for folder in os.environ.get(VARIABLE, "").split(os.pathsep) if folder]


def plugin_modules(package: str) -> list[ModuleType]:
    """Every module directly in a package of `sources`, in order of name. Raises: OutsideError."""
    names = sorted(path.stem for root in _paths(package) for path in root.glob("*.py") if path.stem != "__init__")
    return [_imported(f"{package}.{name}") for name in names]


def suite_modules(package: str) -> list[tuple[ModuleType, ModuleType | None]]:
    """The modules `grid` and, where there is one, `study` of every suite in a package of `sources`.

    Raises: OutsideError.
    """
    grids = sorted(path for root in _paths(package) for path in root.glob("*/grid.py"))
    return [
        (
            _imported(f"{package}.{grid.parent.name}.grid"),
            _imported(f"{package}.{grid.parent.name}.study") if (grid.parent / "study.py").exists() else None,
        )
        for grid in grids
    ]


def _paths(package: str) -> list[Path]:
    return [Path(path) for path in _imported(package).__path__]


@cache
def _package_of(folder: str) -> str:
    """Make the folder a package of its own, so that files of one name in two folders stay apart."""
    if _ROOT not in sys.modules:
        sys.modules[_ROOT] = root = ModuleType(_ROOT)
        root.__path__ = []
    name = f"{_ROOT}.folder{sum(other.startswith(f'{_ROOT}.folder') for other in sys.modules)}"
    sys.modules[name] = package = ModuleType(name)
    package.__path__ = [folder]
    return name


@cache
def _installed() -> tuple[str, ...]:
    return tuple(sorted(entry.value for entry in metadata.entry_points(group=GROUP)))


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # the file is not ours, and may do anything
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise OutsideError(f"plug-ins in {_shown(name)} cannot be imported: {reason}; mend the file") from error


def _shown(name: str) -> str:
    package, _, module = name.rpartition(".")
    parent = sys.modules.get(package)
    return f"{parent.__path__[0]}/{module}.py" if parent is not None and parent.__path__ else name
