"""Short names for methods: their plug-ins with as few parameters as tell them apart.

A parameter that has one value wherever its plug-in occurs, written down or there by default, tells no two
cells apart, so it moves from the name to a note. What remains loses its unit suffix and gains a unit: `cycle=5 ms`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from analysis.wording import size
from results.facts import PluginFacts, in_real_sizes, text_of
from results.record import JobResult

_BREAKS = re.compile(r"(?=[+(])|(?<=/)|(?<=,)(?=[^\d ])|(?<=[^\d] )")  # not between a number and its unit
INDENT = "  "
PLAIN_PRECISION = "float32"
MIB = 2**20  # torch and DeepSpeed call it MB


@dataclass(frozen=True, slots=True)
class Method:
    """What a job runs: its plug-ins as they were written down, or its system, and a remark such as the precision."""

    plugins: tuple[PluginFacts, ...]
    remark: str = ""

    def __str__(self) -> str:
        return text_of(self.plugins) + self.remark

    @property
    def names(self) -> frozenset[str]:
        """Names of the plug-ins that were written down."""
        return frozenset(plugin.name for plugin in self.plugins if plugin.written)

    def of_slot(self, slot: str) -> PluginFacts | None:
        """The plug-in of a slot, be it written down or there by default; None where the record does not say it."""
        return next((plugin for plugin in self.plugins if plugin.slot == slot), None)

    def in_real_sizes(self, size_scale: int) -> Method:
        """The same with sizes as what they stand for where tensors are `size_scale` times smaller."""
        return replace(self, plugins=in_real_sizes(self.plugins, size_scale))


def method_of(job: JobResult) -> Method:
    """The method of a job as it ran. A job without plug-ins is called as its strategy or, without one, its system."""
    plugins = job.plugins or (PluginFacts(name=job.strategy or job.system, slot=""),)
    return Method(plugins, f" in {job.precision}" if job.plugins and job.precision != PLAIN_PRECISION else "")


def short_names(methods: Iterable[Method]) -> dict[str, str]:
    """A short name for each method, by its text. Methods that would become equal keep their full text."""
    wanted = {str(method): method for method in methods}
    common = _common(wanted.values())
    short = {label: "+".join(_short(own, common) for own in _written(m)) + m.remark for label, m in wanted.items()}
    taken = Counter(short.values())
    return {label: name if taken[name] == 1 else label for label, name in short.items()}


def left_out(methods: Iterable[Method], among: Iterable[Method]) -> str:
    """What the short names of `methods`, made `among` these, do not say: `topk(density=0.01), …`; empty if nothing."""
    everything = list(among)
    common, short = _common(everything), short_names(everything)
    plugins = [own for method in methods if short[str(method)] != str(method) for own in _written(method)]
    dropped = [
        replace(own, parameters=tuple(item for item in own.given if (item.name, item.given) in common[own.name]))
        for own in plugins
    ]
    return ", ".join(dict.fromkeys(text_of([own]) for own in dropped if own.parameters))


def _written(method: Method) -> list[PluginFacts]:
    return [plugin for plugin in method.plugins if plugin.written]


def wrap(name: str, width: int) -> str:
    """`name` in lines of at most `width` columns, broken before `+` and `(`, after `/`, commas and spaces.

    Lines after the first are set in. A number stays with its unit.
    """
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


def _common(methods: Iterable[Method]) -> Mapping[str, frozenset[tuple[str, str | None]]]:
    """By name of a plug-in: the parameters with one value in all its occurrences."""
    common: dict[str, frozenset[tuple[str, str | None]]] = {}
    for plugin in (plugin for method in methods for plugin in method.plugins):
        given = frozenset((own.name, own.given) for own in plugin.given)
        common[plugin.name] = common.get(plugin.name, given) & given
    return common


def _short(plugin: PluginFacts, common: Mapping[str, frozenset[tuple[str, str | None]]]) -> str:
    kept = [
        worded(own.name, own.given or "") for own in plugin.given if (own.name, own.given) not in common[plugin.name]
    ]
    return f"{plugin.name}({', '.join(kept)})" if kept else plugin.name


def worded(name: str, value: str) -> str:
    """A parameter as people read it: `slice_elements=40000` is `slice=40.0 k`."""
    if value == "True":
        return name
    number = re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", value)
    if number and name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes')}={size(float(value)) if float(value) else '0'}"
    if number and name.endswith("_mb"):
        return f"{name.removesuffix('_mb')}={size(float(value) * MIB)}"
    if number and name.endswith("_elements"):
        return f"{name.removesuffix('_elements')}={size(float(value)).removesuffix('B').rstrip()}"
    if number and name.endswith("_s"):
        return f"{name.removesuffix('_s')}={float(value) * 1e3:g} ms"
    return f"{name}={value}"
