"""Line rates and times as people write them: `200mbit`, `1.5 Gbit/s`, `none`; `20us`, `1.5 ms`.

Rates are bits per second with decimal prefixes, as network hardware is sold.
"""

from __future__ import annotations

import math
import re

from fabric.cluster import FabricError

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RATE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmg]?bit)(?:/s)?", re.IGNORECASE)
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_TIME = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s)", re.IGNORECASE)
_UNSHAPED = ("none", "unshaped")
_REMEDY = "write a rate such as 200mbit, 1.5gbit, or none for an unshaped link"


def parse_rate(text: str) -> float | None:
    """Return the rate in bit/s, or None for an unshaped link.

    Inverse of `format_rate`. Raises FabricError on zero, on a bare number and on anything else
    that is no rate; `bps` is refused because tc reads it as bytes.
    """
    stripped = text.strip()
    if stripped.lower() in _UNSHAPED:
        return None
    match = _RATE.fullmatch(stripped)
    if match is None:
        raise FabricError(f"{text!r} is no line rate; {_REMEDY}")
    rate_bps = float(match["number"]) * _BITS[match["unit"].lower()]
    if math.isinf(rate_bps) or rate_bps == 0 or math.isinf(8 / rate_bps):
        raise FabricError(f"a line rate of {text!r} cannot carry a message; {_REMEDY}")
    return rate_bps


def parse_seconds(text: str) -> float:
    """Return the time in seconds. Raises FabricError on a bare number other than 0 and on anything that is no time."""
    stripped = text.strip()
    if stripped == "0":
        return 0.0
    match = _TIME.fullmatch(stripped)
    if match is None:
        raise FabricError(f"{text!r} is no time; write one such as 20us or 1.5ms, or 0")
    seconds = float(match["number"]) * _SECONDS[match["unit"].lower()]
    if math.isinf(seconds):
        raise FabricError(f"a time of {text[:40]!r} never ends; write one such as 20us or 1.5ms, or 0")
    return seconds


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
