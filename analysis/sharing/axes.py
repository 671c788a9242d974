"""What suites sweep: how each axis is named, scaled and read, and the theory's line along it.

An axis that is not in the table is drawn as it is called, on a plain scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from analysis.sharing.rows import PHASE, PairRow

RHO = "ρ"
JOBS = "jobs"
HOSTS = "hosts"
RATE = "Gbit/s"
ALPHA = "α in µs"


class Scale(StrEnum):
    """How values are spread along the axis."""

    LINEAR = "linear"
    LOG = "log"


def ideal_gain(rho: float, num_jobs: int = 2) -> float:
    """Σt/T* of identical jobs without overlap inside a step, ρ = m/c: for two of them 1+ρ up to ρ = 1, then 1+1/ρ."""
    solo = 1.0 + rho
    return num_jobs * solo / max(num_jobs, num_jobs * rho, solo)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One swept quantity.

    `formula` (value, number of jobs) is the gain of identical jobs without overlap inside a step, `formula_name` how
    a figure calls it. `home` says where on this axis a pair of another group lies that differs in nothing else.
    """

    label: str
    scale: Scale = Scale.LINEAR
    formula: Callable[[float, int], float] | None = None
    formula_name: str = ""
    home: Callable[[PairRow], float] | None = None


AXES: dict[str, Axis] = {
    RHO: Axis(
        label="ρ = link time / device time of one job alone",
        scale=Scale.LOG,
        formula=ideal_gain,
        formula_name="1+ρ and 1+1/ρ",
    ),
    JOBS: Axis(label="jobs on each device, k"),
    HOSTS: Axis(
        label="hosts, a worker of every job on each", scale=Scale.LOG, home=lambda pair: float(pair.key.num_workers)
    ),
    "jitter": Axis(label="jitter: standard deviation of compute / its mean", home=lambda _: 0.0),
    "slow worker": Axis(label="compute time of one worker / that of the others", home=lambda _: 1.0),
    PHASE: Axis(label="start offset of the last job, share of its step"),
    RATE: Axis(label="Gbit/s that the link stands for", scale=Scale.LOG),
    ALPHA: Axis(label="start-up time of a message, α in µs", scale=Scale.LOG),
}


def axis_of(name: str) -> Axis:
    """The table's entry, or a plain one."""
    return AXES.get(name, Axis(label=name))


def order_of(name: str) -> int:
    """Where it stands in the table; behind it if nowhere."""
    return list(AXES).index(name) if name in AXES else len(AXES)
