"""What keeps the tree readable: one name for one thing, one-way imports, small folders and functions, budgets.

Each bound is a decision, not a measurement. A budget may only fall, unless an issue raises it.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import networkx
import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
PACKAGES = ("suites", "harness", "baselines", "crossover", "fabric", "models", "results", "analysis")
CODE = (*PACKAGES, "scripts")
MOST_MODULES = 20  # in a folder: beyond that, prefixes begin to stand in for folders
MOST_LINES = 60  # of a function


@cache
def parsed() -> dict[Path, ast.Module]:
    """Every module outside tests."""
    files = sorted(file for room in CODE for file in (CHECKOUT / room).rglob("*.py"))
    return {file.relative_to(CHECKOUT): ast.parse(file.read_text()) for file in files}


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for file, module in parsed().items():
        for node in ast.walk(module):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{file}:{node.lineno} {node.name}", node


def test_no_class_name_stands_for_two_things() -> None:
    places = defaultdict(list)
    for file, module in parsed().items():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_import_runs_in_a_circle() -> None:
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    edges = networkx.DiGraph(
        (module, imported) for module in graph.modules for imported in graph.find_modules_directly_imported_by(module)
    )
    assert [sorted(group) for group in networkx.strongly_connected_components(edges) if len(group) > 1] == []


def test_no_room_holds_more_modules_than_one_takes_in() -> None:
    rooms = Counter(str(file.parent) for file in parsed() if file.name != "__init__.py")
    assert {room: count for room, count in rooms.items() if count > MOST_MODULES} == {}


def test_no_function_is_longer_than_a_screen() -> None:
    assert [name for name, node in functions() if (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES] == []


INTERFACES = ("baselines/api.py", "models/workload.py", "fabric/api.py", "crossover/__init__.py")


@pytest.mark.parametrize("file", INTERFACES)
def test_every_public_function_of_an_interface_says_what_it_does(file: str) -> None:
    bare = []
    for node in ast.walk(parsed()[Path(file)]):
        for inner in getattr(node, "body", []) if isinstance(node, ast.Module | ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_") and not ast.get_docstring(inner):
                bare.append(inner.name)
    assert bare == []


BUDGETS = {  # lines of Python per package, docstrings and comments included
    "analysis": 9_950,
    "baselines": 10_650,
    "benchmarks": 2_150,
    "crossover": 11_100,
    "fabric": 6_850,
    "harness": 23_800,
    "models": 4_200,
    "results": 1_570,
    "scripts": 2_440,
    "suites": 10_800,
    "tests": 48_500,
}


@pytest.mark.parametrize("package", BUDGETS)
def test_a_package_stays_within_its_budget_of_lines(package: str) -> None:
    lines = sum(len(file.read_text().splitlines()) for file in (CHECKOUT / package).rglob("*.py"))
    assert lines <= BUDGETS[package]
