"""Numbers as people read them: three figures, a unit, an interval."""

from __future__ import annotations

import math

from analysis.stats import Interval

NOT_KNOWN = "–"
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None, digits: int = 3) -> str:
    """`value` to `digits` significant figures; ∞ and – where there is no number."""
    if value is None or math.isnan(value):
        return NOT_KNOWN
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if not -4 <= exponent < 7:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}".replace("-", "−")


def interval(value: Interval | None, scale: float = 1.0, digits: int = 3) -> str:
    """`median [low, high]`, each times `scale`; `median (low to high)` of a range; the median alone without bounds."""
    if value is None:
        return NOT_KNOWN
    return f"{number(value.median * scale, digits)}{_bounds(value, scale, digits)}"


def _bounds(value: Interval, scale: float = 1.0, digits: int = 3) -> str:
    if (value.exact and not value.is_foretold) or not value.has_bounds:
        return ""
    low, high = number(value.low * scale, digits), number(value.high * scale, digits)
    return f" ({low} to {high})" if value.is_range else f" [{low}, {high}]"


def factor(value: Interval | None) -> str:
    """A ratio with its interval, such as `1.42× [1.38, 1.47]`, or its range, `1.42× (1.38 to 1.47)`."""
    return NOT_KNOWN if value is None else f"{number(value.median)}×{_bounds(value)}"


def percent(share: float, digits: int = 2) -> str:
    """A share of one as a percentage; the sign never stands on a line of its own."""
    return f"{number(100 * share, digits)}\N{NO-BREAK SPACE}%"


def rate(bits_per_s: float) -> str:
    """A link rate, such as `200 Mbit/s`."""
    for size, prefix in _PREFIXES:
        if bits_per_s >= size:
            return f"{bits_per_s / size:g} {prefix}bit/s"
    return f"{bits_per_s:g} bit/s"


def size(num_bytes: float | None) -> str:
    """A number of bytes with a decimal prefix, such as `1.25 MB`."""
    if num_bytes is None or math.isnan(num_bytes):
        return NOT_KNOWN
    for unit, prefix in _PREFIXES:
        if num_bytes >= unit:
            return f"{number(num_bytes / unit)} {prefix}B"
    return f"{number(num_bytes)} B"


def duration(seconds: float | None) -> str:
    """Seconds as ms below one second, else as s."""
    if seconds is None or math.isnan(seconds):
        return NOT_KNOWN
    if math.isinf(seconds):
        return number(seconds)
    return f"{number(seconds * 1e3)} ms" if abs(seconds) < 1.0 else f"{number(seconds)} s"


def plural(count: int, noun: str) -> str:
    """`1 repeat`, `3 repeats`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def numbered(name: str, place: int) -> str:
    """`name` at the first `place`, which is 0, and with its number at others: `name-2`."""
    return f"{name}-{place + 1}" if place else name
