"""Bits an element that a method's code needs by its paper's count: formulas, to stand beside what was really sent.

Values and norms are float32. A set of k of n positions is counted at its entropy H(k/n), which no index type reaches;
SBC's at its Golomb code. Where rows or shapes matter (1-bit's means, PowerSGD) only what does not depend on them is
counted, or nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from analysis import naming

FLOAT = 32.0
GATHERED = frozenset({"topk", "aji-heafield", "dgc", "sbc", "qsgd"})  # every rank gets every other rank's code
Settings = Mapping[str, str]


def theory_bits(method: str) -> float | None:
    """Bits an element of a strategy in text; None where no formula is known, or the system is not ours."""
    found = {part.name: dict(part.parameters) for part in naming.parse(method)}
    known = [(formula, found[name]) for name, formula in FORMULAS.items() if name in found]
    if not known:
        return FLOAT if not set(found) & {"powersgd", "torch-ddp", "horovod"} else None
    formula, settings = known[0]
    return formula(settings)


def sent_share(method: str, num_workers: int) -> float | None:
    """How many times its code a rank sends: to all others where codes are gathered, 2(P−1)/P of it around a ring or
    through servers. None where ranks differ (a tree of more than two) or a system decides."""
    found = {part.name: dict(part.parameters) for part in naming.parse(method)}
    if set(found) & {"torch-ddp", "horovod"} or ("tree" in found and num_workers > 2):
        return None
    by_all = found.keys() & GATHERED and "double-squeeze" not in found
    if by_all or found.get("random-k", {}).get("shared") == "False":
        return float(num_workers - 1)
    return 2 * (num_workers - 1) / num_workers


def entropy(p: float) -> float:
    """Of one yes or no that is yes with probability `p`, in bits."""
    return 0.0 if p <= 0 or p >= 1 else -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def golomb_bits(p: float) -> float:
    """Bits a position of SBC's code at density `p`: b* + 1/(1 − (1−p)^(2^b*))."""
    golden = (1 + math.sqrt(5)) / 2
    b = 1 + math.floor(math.log2(math.log(golden - 1) / math.log(1 - p)))
    return float(b + 1 / (1 - (1 - p) ** (2**b)))


def _density(settings: Settings, default: float) -> float:
    return float(settings.get("density", default))


def _chosen(default: float) -> Callable[[Settings], float]:
    """Values and positions of the chosen elements."""

    def bits(settings: Settings) -> float:
        density = _density(settings, default)
        return density * FLOAT + entropy(density)

    return bits


def _sbc(settings: Settings) -> float:
    density = _density(settings, 0.001)
    return density * golomb_bits(density)


def _random(settings: Settings) -> float:
    """Positions that all ranks draw alike need not be sent."""
    density = _density(settings, 0.01)
    return density * FLOAT + (entropy(density) if settings.get("shared") == "False" else 0.0)


def _qsgd(settings: Settings) -> float:
    """A fixed number of bits, and a norm a bucket."""
    return float(settings.get("bits", 4)) + FLOAT / float(settings.get("bucket", 512))


FORMULAS: Mapping[str, Callable[[Settings], float]] = {
    "half": lambda _: 16.0,
    "topk": _chosen(0.01),
    "gtopk": _chosen(0.01),
    "aji-heafield": _chosen(0.01),
    "dgc": _chosen(0.001),
    "random-k": _random,
    "sbc": _sbc,
    "qsgd": _qsgd,
    "onebit": lambda _: 1.0,
    "onebit-adam": lambda _: 1.0,
}
