"""Reads texts such as `tensor-fusion(cycle_s=0.005)+half`: names with parameters, joined by `+`."""

from __future__ import annotations

import ast
import dataclasses
from typing import Any, TypeVar

T = TypeVar("T")


class TextError(ValueError):
    """A text that cannot be read, or a wrong parameter; the message names it and what to write."""


def split_parts(text: str) -> list[str]:
    """The parts between `+` signs that stand outside brackets."""
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
    name, bracket, rest = part.partition("(")
    if not bracket:
        return name, {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("positional")
        return name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        raise TextError(f"{part!r}: parameters are written as name=value, e.g. topk(density=0.01)") from None


def given_texts(part: str) -> dict[str, str]:
    """The parameters of one part with their values as they are written: `topk(density=1e-2)` gives {"density": "1e-2"}.

    Raises: TextError as `read_call`.
    """
    names = read_call(part)[1]
    _, _, rest = part.partition("(")
    text = f"f({rest}"
    call = ast.parse(text, mode="eval").body if names else None
    keywords = call.keywords if isinstance(call, ast.Call) else []
    return {str(keyword.arg): ast.get_source_segment(text, keyword.value) or "" for keyword in keywords}


def settable_fields(kind: type[Any]) -> dict[str, Any]:
    """The parameters that a text may set, by name, with their defaults."""
    fields = dataclasses.fields(kind)
    return {f.name: f.default for f in fields if f.init and f.default is not dataclasses.MISSING}


def build(kind: type[T], arguments: dict[str, Any]) -> T:
    """Make a plug-in from the parameters of its text; types are those of the defaults.

    Raises: TextError for an unknown parameter, a wrong type or a refused value.
    """
    name = getattr(kind, "card").name  # noqa: B009  every plug-in has one; T is not bound to a protocol
    defaults = settable_fields(kind)
    checked = dict(arguments)
    for key, value in arguments.items():
        if key == "inner":
            continue
        if key not in defaults:
            raise TextError(f"{name} has no parameter {key!r}; it has: {', '.join(defaults) or 'none'}")
        expected = type(defaults[key])
        if expected is float and isinstance(value, int) and not isinstance(value, bool):
            checked[key] = float(value)
        elif type(value) is not expected:
            raise TextError(f"{name}: {key}={value!r} should be of type {expected.__name__}")
    try:
        return kind(**checked)
    except ValueError as error:
        raise TextError(f"{name}: {error}") from error
