"""Values by their names as text: `fat-tree(k=8, gbit=25)`, `training(num_priorities=16)`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields
from sys import float_info
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from fabric.simulated.graph import NetworkError


def parse_named(text: str, kinds: Mapping[str, type[Any]], what: str) -> Any:
    """Read `name` or `name(parameter=value, …)`, the name of a dataclass in `kinds`, values being numbers or tuples of
    numbers. `what` they are is for errors.

    NetworkError names an unknown name or parameter and those that exist.
    """
    name, _, rest = text.strip().partition("(")
    if name.strip() not in kinds:
        raise NetworkError(f"{name!r} is no {what}; use one of {', '.join(kinds)}")
    kind = kinds[name.strip()]
    known = [field.name for field in fields(kind)]
    try:
        call = ast.parse(f"f({rest}" if rest else "f()", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError("parameters have names")
        values = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError) as error:
        example = f"{name}({known[0]}=4)" if known else name
        raise NetworkError(f"{text!r} cannot be read; write it like {example}") from error
    if unknown := sorted(set(values) - set(known)):
        raise NetworkError(f"{name} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
    types = get_type_hints(kind)
    for parameter, value in values.items():
        if not _is_of(value, types[parameter]):
            raise NetworkError(f"{text!r}: {parameter} is {_in_words(types[parameter])}, not {value!r}")
    try:
        return kind(**values)
    except TypeError as error:
        raise NetworkError(f"{text!r} lacks a parameter; {name} has {', '.join(known)}") from error


def _is_of(value: object, wanted: Any) -> bool:
    """Whether a literal is of the type; a whole number is a number too, and infinity none."""
    if get_origin(wanted) is tuple:
        return isinstance(value, tuple) and all(_is_of(own, get_args(wanted)[0]) for own in value)
    if get_origin(wanted) is UnionType:
        return any(_is_of(value, own) for own in get_args(wanted))
    if wanted is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= float_info.max
    return type(value) is wanted


def _in_words(wanted: Any) -> str:
    if get_origin(wanted) is tuple:
        return f"a tuple (a, b, …), each {_in_words(get_args(wanted)[0])}"
    return "a whole number" if wanted is int else "a number"
