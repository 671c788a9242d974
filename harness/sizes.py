"""Sizes in the texts of strategies and systems, from a real cluster to tensors S times smaller.

Grids write real sizes and divide; `results.facts.in_real_sizes` multiplies back, so that a method has one name over
all size scales. Which parameters are sizes, each plug-in says itself (`baselines.api.size`).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from baselines.api import UNIT
from baselines.catalogue import plugins
from baselines.text import given_texts, split_parts
from harness.systems import systems
from results.facts import Unit


def scaled(text: str, size_scale: int) -> str:
    """`text`, of a strategy or a system, with every size divided by `size_scale`; whole numbers stay whole.

    A size of 0, which turns something off, stays 0; any other stays at least one byte or element. A plug-in that has
    a parameter for it is told the scale. Raises: TextError for a text that cannot be read.
    """
    return "+".join(_scaled_part(part, size_scale) for part in split_parts(text))


def _scaled_part(part: str, size_scale: int) -> str:
    name = part.partition("(")[0]
    kind = plugins().get(name) or systems().get(name)
    if kind is None:
        return part
    units = _units(kind)
    given = {own: _divided(value, units.get(own), size_scale) for own, value in given_texts(part).items()}
    told = {own: str(size_scale) for own, unit in units.items() if unit is Unit.SCALE} if size_scale > 1 else {}
    arguments = ", ".join(f"{own}={value}" for own, value in (told | given).items())
    return f"{name}({arguments})" if arguments else name


def _units(kind: type[Any]) -> dict[str, Unit]:
    return {own.name: Unit(own.metadata[UNIT]) for own in dataclasses.fields(kind) if UNIT in own.metadata}


def _divided(text: str, unit: Unit | None, size_scale: int) -> str:
    if unit is None or unit is Unit.SCALE:
        return text
    value = float(text) / size_scale
    number = value if unit is Unit.MEGABYTES or not value else max(1, round(value))
    return f"{number:.10g}"
