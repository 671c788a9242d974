"""Frozen dataclasses to plain JSON and back, checked against their type hints.

Used for records and for trials sent to rank processes: no pickle crosses a file or a socket.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


class CodecError(ValueError):
    """A value that does not fit the type it should have; the message names the field."""


def to_jsonable(value: Any) -> Any:
    """Dataclasses become dicts, enums their values, tuples lists; NaN and ∞ become strings."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CodecError(f"cannot write a {type(value).__name__} as JSON")


def from_jsonable(kind: type[T], data: Any, where: str = "") -> T:
    """Build a `kind` from plain JSON. Raises: CodecError naming the field that does not fit."""
    decoded: T = _decode(kind, data, where or kind.__name__)
    return decoded


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(kind), data, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            raise CodecError(f"{where}: {data!r} is none of {[m.value for m in kind]}") from None
    if origin is tuple:
        return _decode_tuple(get_args(kind), data, where)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(data, dict):
            raise CodecError(f"{where}: expected an object, got {type(data).__name__}")
        value_kind = get_args(kind)[1]
        return {key: _decode(value_kind, item, f"{where}.{key}") for key, item in data.items()}
    return _decode_scalar(kind, data, where)


def _decode_union(kinds: Sequence[Any], data: Any, where: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    errors = []
    for kind in kinds:
        if kind is not type(None):
            try:
                return _decode(kind, data, where)
            except CodecError as error:
                errors.append(error)
    raise errors[-1] if errors else CodecError(f"{where}: unexpected {data!r}")


def _decode_dataclass(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise CodecError(f"{where}: expected an object, got {type(data).__name__}")
    hints, required = _fields(kind)
    unknown = sorted(data.keys() - hints.keys())
    if unknown:
        raise CodecError(f"{where}: unknown field {unknown[0]!r}")
    missing = sorted(required - data.keys())
    if missing:
        raise CodecError(f"{where}: field {missing[0]!r} is missing")
    return kind(**{name: _decode(hints[name], item, f"{where}.{name}") for name, item in data.items()})


@cache  # working hints out took two thirds of the time in which thousands of records are read
def _fields(kind: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The type of each field of a dataclass, and the fields that must be there."""
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    bare = (f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING)
    return {f.name: hints[f.name] for f in fields}, frozenset(bare)


def _decode_tuple(kinds: Sequence[Any], data: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise CodecError(f"{where}: expected a list, got {type(data).__name__}")
    if kinds == (float, Ellipsis) and all(type(item) is float and math.isfinite(item) for item in data):
        return tuple(data)  # most of a record, and nothing to convert
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(data))
    if len(kinds) != len(data):
        raise CodecError(f"{where}: expected {len(kinds)} items, got {len(data)}")
    return tuple(_decode(kind, item, f"{where}[{i}]") for i, (kind, item) in enumerate(zip(kinds, data, strict=True)))


def _decode_scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is float and isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise CodecError(f"{where}: an integer of {data.bit_length()} bits is no number of ours") from None
    if kind is float and isinstance(data, float) and not math.isfinite(data):
        raise CodecError(f'{where}: a number too large for a float; write "inf" if that is meant')
    if not isinstance(kind, type) or not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise CodecError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {data!r:.80}")
    return data
