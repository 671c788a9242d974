"""Strict reading of a profile's fields: what has the wrong type is refused, never converted."""

import json
from collections.abc import Callable
from typing import Any

from crossover.errors import Refused

MAX_COUNT = (1 << 63) - 1  # bytes of a device or workers: more cannot be, and what is far beyond is no float either


def json_object(text: str) -> dict[str, Any]:
    """The text's one object. Raises `Refused`."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"not JSON ({error})") from error
    if not isinstance(given, dict):
        raise Refused(f"a profile is one JSON object, not a {type(given).__name__}")
    return given


def read_field(name: str, value: object) -> Any:
    """The field's value, if it is of its type. Raises `Refused` naming both."""
    read = _READERS[name]
    try:
        return read(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(f"{name} is {value!r:.80}: {error}") from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("give a text")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("give a number of seconds")
    return float(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value > MAX_COUNT:
        raise TypeError(f"give a whole number up to {MAX_COUNT}")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError("give true or false")
    return value


def _pairs(value: object) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list) or any(not isinstance(pair, list) or len(pair) != 2 for pair in value):
        raise TypeError("give a list of [ready_s, link_s]")
    return tuple((_number(ready_s), _number(link_s)) for ready_s, link_s in value)


def _number_or_none(value: object) -> float | None:
    return None if value is None else _number(value)


_TIMES = ("compute_s", "communication_s", "solo_s", "loading_s")
_READERS: dict[str, Callable[[object], Any]] = {
    "name": _text,
    "source": _text,
    "buckets": _pairs,
    "forward_s": _number_or_none,
    "exposed_only": _flag,
    **dict.fromkeys(_TIMES, _number),
    **dict.fromkeys(("parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "world"), _count),
}
