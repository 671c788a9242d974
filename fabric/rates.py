"""Line rates, times and sizes as people write them, for every command: `200mbit`, `10Gbps`, `none`; `20us`, `2e-5`;
`16GB`.

Rates are bits per second with decimal prefixes, as network hardware is sold. What no network or device has is refused,
since it is a slip of the unit.
"""

from __future__ import annotations

import re
from decimal import Decimal

from fabric.cluster import MAX_ALPHA_S, FabricError

_NUMBER = r"(?P<number>\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*"
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
# A capital B is a byte: MB/s and MBps are no line rates.
_RATE = re.compile(rf"(?i:{_NUMBER}(?P<prefix>[kmgt]?))(?:(?i:bit)(?:/s|ps)?|b(?i:/s|ps))")
_SECONDS = {"ns": "1e-9", "us": "1e-6", "µs": "1e-6", "ms": "1e-3", "s": "1", "m": "60", "min": "60", "h": "3600"}
_TIME = re.compile(rf"{_NUMBER}(?P<unit>{'|'.join(_SECONDS)})?", re.IGNORECASE)
_SIZE = re.compile(rf"{_NUMBER}(?P<prefix>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)
_UNSHAPED = ("none", "unshaped")
_REMEDY = "write a rate such as 200mbit, 1.5gbit, 10Gbps, or none for an unshaped link"
_LEAST_S, _MOST_BARE_S = 1e-15, 0.1
LEAST_RATE_BPS, MOST_RATE_BPS = 1.0, 1e15
MOST_SIZE_BYTES = 1e18


def parse_rate(text: str) -> float | None:
    """Return the rate in bit/s, or None for an unshaped link. Inverse of `format_rate`.

    Raises: FabricError on a bare number, on bytes per second, on a rate no link has, and on what is no rate.
    """
    stripped = text.strip()
    if stripped.lower() in _UNSHAPED:
        return None
    match = _RATE.fullmatch(stripped)
    if match is None:
        raise FabricError(f"{text[:40]!r} is no line rate; {_REMEDY}")
    rate_bps = float(match["number"]) * _PREFIXES[match["prefix"].lower()]
    if not LEAST_RATE_BPS <= rate_bps <= MOST_RATE_BPS:
        raise FabricError(f"a line rate of {text[:40]!r} is no link's and cannot carry a message; {_REMEDY}")
    return rate_bps


def parse_seconds(
    text: str, what: str = "", *, most_s: float = MAX_ALPHA_S, such_as: str = "20us, 1.5ms or 2e-5"
) -> float:
    """Return the time in seconds, at most `most_s`. A bare number is seconds, as `2e-5`, and at most 0.1.

    `what` names the option in the error. Raises: FabricError.
    """
    match = _TIME.fullmatch(text.strip())
    named = f"{what} {text[:40]!r}".strip()
    if match is None:
        raise FabricError(f"{named} is no time; write one such as {such_as}")
    # Decimal, so that 20us is 2e-5 to the last bit.
    seconds = float(Decimal(match["number"]) * Decimal(_SECONDS[(match["unit"] or "s").lower()]))
    # 20 is more likely meant as microseconds than as seconds.
    if match["unit"] is None and seconds > _MOST_BARE_S:
        raise FabricError(f"{named} is no time without a unit: it would be {seconds:g} s; write one such as {such_as}")
    if seconds > most_s or 0 < seconds < _LEAST_S:
        raise FabricError(f"{named} is {seconds:g} s; it must be 0 or {_LEAST_S:g} to {most_s:g} s, such as {such_as}")
    return seconds


def parse_size(text: str, what: str = "") -> int:
    """Return bytes of `16GB` or `16GiB`. Raises: FabricError for what is no size of a byte or more."""
    match = _SIZE.fullmatch(text.strip())
    num_bytes = 0.0
    if match is not None and not (match["binary"] and not match["prefix"]):
        place = list(_PREFIXES).index(match["prefix"].lower())
        num_bytes = float(match["number"]) * (1024.0 if match["binary"] else 1000.0) ** place
    if not 1 <= num_bytes <= MOST_SIZE_BYTES:
        raise FabricError(
            f"{what} {text[:40]!r} is no size of a byte or more; write it as 16GB, 800MB or 16GiB".strip()
        )
    return round(num_bytes)


def format_rate(rate_bps: float | None) -> str:
    """Write a rate with the largest unit that leaves at least one in front: `200 Mbit/s`."""
    if rate_bps is None:
        return "unshaped"
    for unit, bits in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate_bps >= bits:
            return f"{_decimal(rate_bps / bits)} {unit}"
    return f"{_decimal(rate_bps)} bit/s"


def _decimal(number: float) -> str:
    """Write up to six digits after the point, without an exponent or trailing zeros."""
    return f"{number:.6f}".rstrip("0").rstrip(".")
