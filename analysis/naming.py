"""Short names for strategies: `tensor-fusion(cycle_s=0.005)+half` is read as parts with parameters.

A parameter that has one value wherever its part occurs tells no two cells apart, so it moves from
the name to a note. What remains loses its unit suffix and gains a unit: `cycle=5 ms`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from analysis.wording import size

_BREAKS = re.compile(r"(?=[+(])|(?<=/)|(?<= )")
INDENT = "  "


@dataclass(frozen=True, slots=True)
class Part:
    """One plug-in or system of a label, with the parameters that were given."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        inner = ", ".join(f"{name}={value}" for name, value in self.parameters)
        return f"{self.name}({inner})" if inner else self.name


def parse(label: str) -> tuple[Part, ...]:
    """The parts of a label. Text that is no such expression stays one part without parameters."""
    parts = [_part(text) for text in _split(label, "+")]
    return tuple(parts) if "+".join(map(str, parts)) == label else (Part(label),)


def short_names(labels: Iterable[str]) -> dict[str, str]:
    """A short name for each label. Labels that would become equal keep their full text."""
    wanted = list(dict.fromkeys(labels))
    common = _common(wanted)
    short = {label: "+".join(_short(part, common) for part in parse(label)) for label in wanted}
    taken = list(short.values())
    return {label: name if taken.count(name) == 1 else label for label, name in short.items()}


def left_out(labels: Iterable[str], among: Iterable[str]) -> str:
    """What the short names of `labels`, made `among` these, do not say: `topk(density=0.01), …`; empty if nothing."""
    everything = list(among)
    common, short = _common(everything), short_names(everything)
    parts = [part for label in labels if short[label] != label for part in parse(label)]
    dropped = [Part(part.name, tuple(item for item in part.parameters if item in common[part.name])) for part in parts]
    return ", ".join(dict.fromkeys(str(part) for part in dropped if part.parameters))


def wrap(name: str, width: int) -> str:
    """`name` in lines of at most `width` columns, broken before `+` and `(`, after `/` and spaces, others set in."""
    lines = [""]
    for piece in (text for text in _BREAKS.split(name) if text):
        while len(lines[-1]) + len(piece.rstrip()) > width:
            if lines[-1].strip():
                lines.append(INDENT)
                continue
            room = max(1, width - len(lines[-1]))
            lines[-1] += piece[:room]
            piece = piece[room:]
            lines.append(INDENT)
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines if line.strip())


def _split(text: str, mark: str) -> Iterator[str]:
    """Split at `mark` outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for place, sign in enumerate(text):
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
        elif sign == mark and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


def _part(text: str) -> Part:
    name, bracket, inner = text.partition("(")
    if not bracket or not inner.endswith(")"):
        return Part(text)
    pairs = [pair.strip().partition("=") for pair in _split(inner[:-1], ",")]
    return Part(name, tuple((key, value) for key, _, value in pairs))


def _common(labels: Iterable[str]) -> Mapping[str, frozenset[tuple[str, str]]]:
    """By part name: the parameters with one value in all its occurrences."""
    common: dict[str, frozenset[tuple[str, str]]] = {}
    for part in (part for label in labels for part in parse(label)):
        given = frozenset(part.parameters)
        common[part.name] = common.get(part.name, given) & given
    return common


def _short(part: Part, common: Mapping[str, frozenset[tuple[str, str]]]) -> str:
    kept = [worded(*item) for item in part.parameters if item not in common[part.name]]
    return f"{part.name}({', '.join(kept)})" if kept else part.name


def worded(name: str, value: str) -> str:
    """A parameter as people read it: `slice_elements=40000` is `slice=40.0 k`."""
    if value == "True":
        return name
    number = re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", value)
    if number and name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')}={size(float(value)) if float(value) else '0'}"
    if number and name.endswith("_mb"):
        return f"{name.removesuffix('_mb')}={size(float(value) * 1e6)}"
    if number and name.endswith("_elements"):
        return f"{name.removesuffix('_elements')}={size(float(value)).removesuffix('B').rstrip()}"
    if number and name.endswith("_s"):
        return f"{name.removesuffix('_s')}={float(value) * 1e3:g} ms"
    return f"{name}={value}"
