"""What analysis must not know: the names of suites, plug-ins and systems, and the classes of others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import analysis
from baselines.catalogue import plugins
from harness.systems import systems
from suites.catalogue import all_suites

ROOT = Path(analysis.__path__[0])
# Words of the records' own vocabulary and of collectives that are names too: a sharing policy, the line without
# communication, what the section on codes is about, and how systems combine gradients unless they say otherwise.
VOCABULARY = {"crossover", "local", "compression", "ours", "all-reduce"}


def strings(path: Path) -> Iterator[str]:
    """Every string of a module that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
    docs = {id(scope.body[0].value) for scope in scopes if isinstance(scope.body[0], ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.stem)
def test_no_module_names_a_suite_a_plug_in_or_a_system(path: Path) -> None:
    names = {*all_suites(), *plugins(), *systems()} - VOCABULARY
    named = {text for text in strings(path) if text.partition("(")[0] in names}
    assert not named, f"{path.name} names {sorted(named)}; let the suite's study.py say it"
