"""What keeps the tree readable: one name for one thing, one-way imports, rooms and functions one can take in, words.

Each bound is a decision (docs/decisions/0037-rooms.md, 0044-words.md), not a measurement: change one only with a reason
there.
"""

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

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


class Words(NamedTuple):
    """Bounds of a room: the largest share of public functions without a docstring, the least share of comments."""

    bare: float
    comments: float


WORDS = {
    "harness": Words(bare=0.05, comments=0.04),
    "crossover": Words(bare=0.05, comments=0.04),
    "baselines": Words(bare=0.05, comments=0.0),  # a plug-in's page is its module docstring
    "models": Words(bare=0.05, comments=0.0),
    "fabric": Words(bare=0.10, comments=0.04),
    "results": Words(bare=0.05, comments=0.0),
    "suites": Words(bare=0.10, comments=0.0),
    "analysis": Words(bare=0.05, comments=0.0),
    "scripts": Words(bare=0.05, comments=0.0),
}
NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.COMMENT}


def test_every_room_has_a_bound_on_its_words() -> None:
    assert set(WORDS) == set(CODE)


@pytest.mark.parametrize("room", WORDS)
def test_few_public_functions_of_a_room_go_without_a_docstring(room: str) -> None:
    documented = {
        f"{file}:{function.lineno} {function.name}": ast.get_docstring(function) is not None
        for file, module in parsed().items()
        if file.parts[0] == room
        for function in public_functions(module)
    }
    bare = [name for name, has_docstring in documented.items() if not has_docstring]
    assert len(bare) <= WORDS[room].bare * len(documented), bare


@pytest.mark.parametrize("room", [room for room, words in WORDS.items() if words.comments])
def test_comments_are_a_share_of_a_rooms_code_lines(room: str) -> None:
    counted = [lines_of(CHECKOUT / file, module) for file, module in parsed().items() if file.parts[0] == room]
    num_code, num_comments = (sum(of_file) for of_file in zip(*counted, strict=True))
    assert num_comments >= WORDS[room].comments * num_code, f"{num_comments} comments for {num_code} lines of code"


def public_functions(parent: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Functions, and methods of public classes, whose names do not begin with an underscore."""
    for node in parent.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node


def lines_of(file: Path, module: ast.Module) -> tuple[int, int]:
    """How many lines hold code, docstrings apart, and how many a comment (of their own or behind code)."""
    code, comments = set[int](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(module):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            code.difference_update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(code), len(comments)
