"""Reads texts such as `tensor-fusion(cycle_s=0.005)+half`: names with parameters, joined by `+`."""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
import warnings
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")

MOST_CHARACTERS = 2_000


class TextError(ValueError):
    """A text that cannot be read, or a wrong parameter; the message names it and what to write."""


def split_parts(text: str) -> list[str]:
    """The parts between `+` signs that stand outside brackets."""
    if len(text) > MOST_CHARACTERS:
        raise TextError(f"{text[:40]!r}… has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read")
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "+" and depth == 0:
            parts.append(text[start:position].strip())
            start = position + 1
    parts.append(text[start:].strip())
    if depth != 0 or not all(parts):
        raise TextError(f"{text!r} cannot be read; write e.g. tensor-fusion(cycle_s=0.005)+half")
    return parts


def read_call(part: str) -> tuple[str, dict[str, Any]]:
    """Name and parameters of one part: `topk(density=0.01)` gives ("topk", {"density": 0.01})."""
    try:
        return part.partition("(")[0], {own: ast.literal_eval(value) for own, (value, _) in _given(part).items()}
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: nested beyond the parser's depth
        raise TextError(f"{part!r}: parameters are written as name=value, each once, e.g. topk(density=0.01)") from None


def given_texts(part: str) -> dict[str, str]:
    """The parameters of one part with their values as they are written: `topk(density=1e-2)` gives {"density": "1e-2"}.

    Raises: TextError as `read_call`.
    """
    read_call(part)
    return {own: written for own, (_, written) in _given(part).items()}


def _given(part: str) -> dict[str, tuple[ast.expr, str]]:
    """The parameters of one part: value and the text of it. Raises: ValueError, or what the parser raises."""
    _, bracket, rest = part.partition("(")
    if not bracket:
        return {}
    text = f"f({rest.rstrip()}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # of `1in`, say: refused by `read_call`, in our words
        call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
        raise ValueError("no name with parameters, or more than that")
    given = {str(own.arg): (own.value, ast.get_source_segment(text, own.value) or "") for own in call.keywords}
    # The parser takes a name twice, and leaves a comment behind the brackets out.
    if len(given) < len(call.keywords) or ast.get_source_segment(text, call) != text:
        raise ValueError("a parameter would be dropped")
    return given


def settable_fields(kind: type[Any]) -> dict[str, Any]:
    """The parameters that a text may set, by name, with their defaults."""
    fields = dataclasses.fields(kind)
    return {f.name: f.default for f in fields if f.init and f.default is not dataclasses.MISSING}


def defaults_text(kind: type[Any]) -> str:
    """The parameters with their defaults as a text would set them: `density=0.01, values='float32'`."""
    defaults = settable_fields(kind).items()
    return ", ".join(f"{name}={(own.value if isinstance(own, Enum) else own)!r}" for name, own in defaults)


def build(kind: type[T], arguments: dict[str, Any]) -> T:
    """Make a plug-in from the parameters of its text; types are those of the defaults.

    Raises: TextError for an unknown parameter, a wrong type or a refused value.
    """
    card = getattr(kind, "card")  # noqa: B009  every plug-in has one; T is not bound to a protocol
    name = card.name
    defaults = settable_fields(kind)
    checked = dict(arguments)
    for key, value in arguments.items():
        if key == "inner" and getattr(card, "wraps", False):  # set by whoever puts the parts together, not by the text
            continue
        if key not in defaults:
            raise TextError(f"{name} has no parameter {key!r}; it has: {', '.join(defaults) or 'none'}")
        expected = type(defaults[key])
        if expected is float and isinstance(value, int) and not isinstance(value, bool):
            checked[key] = float(value) if abs(value) <= sys.float_info.max else math.inf
        elif type(value) is not expected:
            raise TextError(f"{name}: {key}={value!r:.80} should be of type {expected.__name__}")
        if isinstance(checked[key], float) and not math.isfinite(checked[key]):
            raise TextError(f"{name}: {key}={value!r:.80} is no finite number; write one such as {defaults[key]!r}")
    try:
        return kind(**checked)
    except ValueError as error:
        raise TextError(f"{name}: {error}") from error
