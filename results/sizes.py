"""Sizes in the texts of strategies and systems, between a real cluster and tensors S times smaller; both ways.

Grids write real sizes and divide, reports multiply back, so that a method has one name over all size scales.
"""

from __future__ import annotations

import re

_SIZE = re.compile(r"\b(?P<name>\w+_(?P<unit>bytes|elements|mb))=(?P<value>\d+(?:\.\d+)?)")
_TUNERS_SCALE = re.compile(r"\bsize_scale=\d+, ")


def scaled(text: str, size_scale: int) -> str:
    """`text` with every size (`…_bytes`, `…_elements`, `…_mb`) divided by `size_scale`; whole numbers stay whole.

    A size of 0, which turns something off, stays 0; any other stays at least one byte or element. A tuner is told,
    since its ranges are sizes too.
    """

    def divided(found: re.Match[str]) -> str:
        value = float(found["value"]) / size_scale
        whole = found["unit"] != "mb"
        number = max(1, round(value)) if whole and value else value
        return f"{found['name']}={number:.10g}"

    own = text.replace("bayesian(", f"bayesian(size_scale={size_scale}, ") if size_scale > 1 else text
    return _SIZE.sub(divided, own)


def in_real_sizes(label: str, size_scale: int) -> str:
    """`label` with its sizes times `size_scale`, to three figures: what they stand for."""

    def multiplied(found: re.Match[str]) -> str:
        value = float(f"{float(found['value']) * size_scale:.3g}")
        return f"{found['name']}={value:.10g}" if value < 1e10 else f"{found['name']}={value:.0f}"

    label = _TUNERS_SCALE.sub("", label)
    return _SIZE.sub(multiplied, label) if size_scale > 1 or _SIZE.search(label) else label
