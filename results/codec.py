"""Frozen dataclasses to plain JSON and back, checked against their type hints.

Used for records and for trials sent to rank processes: no pickle crosses a file or a socket.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping, Sequence
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
    hashable: Any = kind  # as every class is, which mypy does not know
    try:
        decoded: T = _decoder(hashable)(data)
    except _MisfitError as misfit:
        place = "".join(reversed(misfit.path))
        raise CodecError(f"{where or kind.__name__}{place}: {misfit}") from None
    return decoded


class _MisfitError(Exception):
    """A value that does not fit; where it is, innermost first, is put together on the way out."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


# Of each type the decoder is made once: reports read thousands of records, whose values nearly always fit.
_Decoder = Callable[[Any], Any]


@cache
def _decoder(kind: Any) -> _Decoder:
    """What makes a `kind` of plain JSON. Raises: _MisfitError."""
    origin = get_origin(kind)
    if kind is Any:
        return lambda data: data
    if origin in (Union, types.UnionType):
        return _of_union(get_args(kind))
    if dataclasses.is_dataclass(kind):
        return lambda data: _dataclass_of(kind, data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda data: _member_of(kind, data)
    if origin is tuple:
        return _of_tuple(get_args(kind))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _of_mapping(_decoder(get_args(kind)[1]))
    if kind is float:
        return lambda data: data if type(data) is float and math.isfinite(data) else _scalar_of(float, data)
    return lambda data: data if type(data) is kind else _scalar_of(kind, data)


def _of_union(kinds: Sequence[Any]) -> _Decoder:
    decoders = [_decoder(kind) for kind in kinds if kind is not types.NoneType]
    nothing = types.NoneType in kinds
    # A scalar is of its own type, whatever stands before that: to Python unions in another order are the same one.
    exact = {kind: _decoder(kind) for kind in kinds if kind in (bool, int, float, str)}

    def decode(data: Any) -> Any:
        if data is None and nothing:
            return None
        if (only := exact.get(type(data))) is not None:
            return only(data)
        misfit: _MisfitError | None = None
        for own in decoders:
            try:
                decoded = own(data)
            except _MisfitError as error:
                misfit = error
            else:
                misfit = None  # it, its traceback and this frame would keep each other until a collection
                return decoded
        # Made only here: nearly all values fit, and the text of a large one takes longer than reading it.
        raise misfit or _MisfitError(f"unexpected {data!r}")

    return decode


def _member_of(kind: type[Enum], data: Any) -> Enum:
    try:
        return kind(data)
    except ValueError:
        raise _MisfitError(f"{data!r} is none of {[member.value for member in kind]}") from None


def _dataclass_of(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise _MisfitError(f"expected an object, got {type(data).__name__}")
    decoders, required = _fields(kind)
    if not data.keys() <= decoders.keys():
        raise _MisfitError(f"unknown field {min(data.keys() - decoders.keys())!r}")
    if not required <= data.keys():
        raise _MisfitError(f"field {min(required - data.keys())!r} is missing")
    return kind(**_items(data, decoders.__getitem__))


@cache
def _fields(kind: Any) -> tuple[Mapping[str, _Decoder], frozenset[str]]:
    """The decoder of each field of a dataclass, and the fields that must be there."""
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    bare = (f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING)
    return {f.name: _decoder(hints[f.name]) for f in fields}, frozenset(bare)


def _of_mapping(value: _Decoder) -> _Decoder:
    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _MisfitError(f"expected an object, got {type(data).__name__}")
        return _items(data, lambda name: value)

    return decode


def _items(data: Mapping[str, Any], decoder_of: Callable[[str], _Decoder]) -> dict[str, Any]:
    """Every value by its own decoder."""
    values = {}
    for name, item in data.items():
        try:
            values[name] = decoder_of(name)(item)
        except _MisfitError as misfit:
            misfit.path.append(f".{name}")
            raise
    return values


def _of_tuple(kinds: Sequence[Any]) -> _Decoder:
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return _of_many(_decoder(kinds[0]), are_floats=kinds[0] is float)
    decoders = [_decoder(kind) for kind in kinds]

    def decode(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _MisfitError(f"expected a list, got {type(data).__name__}")
        if len(decoders) != len(data):
            raise _MisfitError(f"expected {len(decoders)} items, got {len(data)}")
        return tuple(_at(place, own, item) for place, (own, item) in enumerate(zip(decoders, data, strict=True)))

    return decode


def _of_many(own: _Decoder, *, are_floats: bool) -> _Decoder:
    def decode(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise _MisfitError(f"expected a list, got {type(data).__name__}")
        if are_floats and all(type(item) is float and math.isfinite(item) for item in data):
            return tuple(data)  # most of a record, and nothing to convert
        return tuple(_at(place, own, item) for place, item in enumerate(data))

    return decode


def _at(place: int, own: _Decoder, item: Any) -> Any:
    try:
        return own(item)
    except _MisfitError as misfit:
        misfit.path.append(f"[{place}]")
        raise


def _scalar_of(kind: Any, data: Any) -> Any:
    if kind is float and isinstance(data, str) and data in ("inf", "-inf", "nan"):
        return float(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        try:
            return float(data)
        except OverflowError:
            raise _MisfitError(f"an integer of {data.bit_length()} bits is no number of ours") from None
    if kind is float and isinstance(data, float) and not math.isfinite(data):
        raise _MisfitError('a number too large for a float; write "inf" if that is meant')
    if not isinstance(kind, type) or not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise _MisfitError(f"expected {getattr(kind, '__name__', kind)}, got {data!r:.80}")
    return data
