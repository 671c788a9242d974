"""The bounds of numbers in files that a user may hand in, by the name of the field.

What is counted or measured is finite, 0 or more, and no larger than `MOST`, so that sums, squares and ratios of it are
finite too. A loss may diverge, and a setting may be any finite number.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from functools import cache
from typing import Any

from results.codec import CodecError

MOST = 1e18
SHORTEST_S = 1e-12  # of what others are divided by
DIVERGING = frozenset({"loss", "objectives", "loss_scale"})
SETTINGS = frozenset({"value", "values", "tuned", "at"})
UNCHECKED = frozenset({"trial"})  # as it was asked; a run of it checks it
LEAST = {
    **dict.fromkeys(("batch_size", "accumulate", "size_scale", "ranks_per_host", "row_length"), 1),
    **dict.fromkeys(("num_hosts", "CollectiveFacts.num_ranks", "world", "num_tensors"), 1),
    "copy_s": 1e-18,  # per element
    "RowTime.seconds": SHORTEST_S,
    **dict.fromkeys(("steps_s", "makespan_s", "rate_bps", "equivalent_rate_bps"), SHORTEST_S),
}
MOST_RANKS = 1_000_000
HIGHEST = {
    **dict.fromkeys(("num_hosts", "num_ranks", "world", "num_virtual"), MOST_RANKS),
    **dict.fromkeys(("num_servers", "ranks_per_host", "num_tensors"), MOST_RANKS),
    "loss": 1e300,  # so that a mean of a million losses is finite
    "objectives": sys.float_info.max,
}


def check_numbers(value: Any, name: str = "") -> None:
    """Every number in a dataclass that was read from a file. Raises: CodecError naming field, value and bounds."""
    kind: Any = type(value)
    if kind is float or kind is int:
        low, high = _bounds(name)
        if low <= value <= high or (name in DIVERGING and (math.isnan(value) or value == math.inf)):
            return
        raise CodecError(f"{name} is {value!r:.40}; it must be a number from {low:g} to {high:g}")
    if kind is tuple or kind is dict:
        items = value if kind is tuple else value.values()
        if kind is tuple and _all_floats_within(value, *_bounds(name)):  # most of a record
            return
        for item in items:
            check_numbers(item, name)
    elif dataclasses.is_dataclass(value):
        for field_name, key in _fields(kind):
            item = getattr(value, field_name)
            if item is not None and type(item) is not str:
                check_numbers(item, key)


@cache
def _fields(kind: Any) -> tuple[tuple[str, str], ...]:
    """The fields whose numbers are checked, each with the name by which its bounds are known."""
    names = [own.name for own in dataclasses.fields(kind) if own.name not in UNCHECKED]
    return tuple((name, own if (own := f"{kind.__name__}.{name}") in LEAST else name) for name in names)


def _bounds(name: str) -> tuple[float, float]:
    return LEAST.get(name, -MOST if name in SETTINGS or name in DIVERGING else 0.0), HIGHEST.get(name, MOST)


def _all_floats_within(values: tuple[Any, ...], low: float, high: float) -> bool:
    if not values or any(type(value) is not float for value in values):
        return False
    return low <= min(values) and max(values) <= high and not math.isnan(sum(values))
