"""How a user's script is paced, as one environment variable says it: `hosts=8,rate=10gbit,alpha=20us`.

`report=FILE` may follow as the last entry; its name may hold commas.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fabric.cluster import FabricError, FabricKind, FabricSpec
from fabric.rates import parse_rate, parse_seconds

VARIABLE = "CROSSOVER_BENCH_PACE"
_DEFAULTS = {"hosts": "8", "rate": "10gbit", "alpha": "20us"}
_REMEDY = "write it as hosts=8,rate=10gbit,alpha=20us"


@dataclass(frozen=True, slots=True)
class ScriptPace:
    """The fabric, and where to write what was measured (None: it is only printed)."""

    spec: FabricSpec
    report: Path | None = None


def parse_pace(text: str) -> ScriptPace:
    """Read the variable. Raises: FabricError naming what is wrong in it."""
    given = dict(_DEFAULTS)
    settings, _, report = f",{text}".partition(",report=")
    for entry in filter(None, settings.split(",")):
        name, equals, value = entry.partition("=")
        if not equals or name.strip() not in given:
            raise FabricError(f"{VARIABLE}: {entry!r} is none of {', '.join(_DEFAULTS)}; {_REMEDY}")
        given[name.strip()] = value.strip()
    if not given["hosts"].removeprefix("-").isdecimal():
        raise FabricError(f"{VARIABLE}: hosts={given['hosts']!r} is no number; {_REMEDY}")
    num_ranks = int(given["hosts"])
    if num_ranks < 2:
        raise FabricError(
            f"--hosts {num_ranks} (hosts={num_ranks} in {VARIABLE}): a script is paced as one of 2 ranks or more, the "
            "others virtual; give 2 or more"
        )
    spec = FabricSpec(
        kind=FabricKind.PACED,
        num_hosts=1,
        num_virtual=num_ranks,
        rate_bps=parse_rate(given["rate"]),
        alpha_s=parse_seconds(given["alpha"], "alpha"),
    )
    return ScriptPace(spec, Path(report) if report else None)
