"""The values that say what methods have reached: one method, one workload on one number of workers."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

from results.facts import Role

ACCURACY, LOSS = "accuracy", "loss"


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, standard deviation over repeats (None for one) and how many there are."""

    mean: float
    deviation: float | None
    count: int

    @classmethod
    def of(cls, values: list[float]) -> Spread | None:
        """Of the values that are finite; None without any."""
        finite = [value for value in values if math.isfinite(value)]
        if not finite:
            return None
        return cls(statistics.fmean(finite), statistics.stdev(finite) if len(finite) > 1 else None, len(finite))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutCurve:
    """Held-out values of one method at the steps that every repeat reached: mean, and the range of all."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    times_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a repeat had paid when it first stood at the target; ∞ where it never did, None where nobody counted."""

    repeat: int
    steps: float
    num_bytes: float | None
    time_s: float | None

    @property
    def is_paid(self) -> bool:
        """Whether it got there."""
        return math.isfinite(self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutEnd:
    """Where a repeat stood at its last evaluation; those of several methods pair by `repeat`."""

    repeat: int
    accuracy: float
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """One method. `final` is the last held-out value of the metric over repeats that ended well; `prices` and `ends`
    have one entry a repeat, diverged ones too. `clock` is what its times are: measured, predicted or none."""

    name: str
    strategy: str
    optimizer: str
    final: Spread | None
    final_accuracy: Spread | None
    final_loss: Spread | None
    prices: tuple[Price, ...]
    course: HeldOutCurve | None
    clock: str
    num_diverged: int = 0
    is_dense: bool = False
    role: Role = Role.METHOD
    falls_short: float | None = None
    ends: tuple[HeldOutEnd, ...] = ()
    record_ids: tuple[str, ...] = ()

    @property
    def steps_by_repeat(self) -> dict[int, float]:
        """Steps to the target of every repeat."""
        return {price.repeat: price.steps for price in self.prices}

    @property
    def bytes_by_repeat(self) -> dict[int, float]:
        """Bytes that a rank had sent, of the repeats where they were counted."""
        return {price.repeat: price.num_bytes for price in self.prices if price.num_bytes is not None}

    @property
    def times_s_by_repeat(self) -> dict[int, float]:
        """Seconds to the target of the repeats whose time is known."""
        return {price.repeat: price.time_s for price in self.prices if price.time_s is not None}

    @property
    def accuracies_by_repeat(self) -> dict[int, float]:
        """Held-out accuracy at the end of every repeat."""
        return {end.repeat: end.accuracy for end in self.ends}

    @property
    def losses_by_repeat(self) -> dict[int, float]:
        """Held-out loss at the end of every repeat."""
        return {end.repeat: end.loss for end in self.ends}

    @property
    def num_reached(self) -> int:
        """Repeats that got there."""
        return sum(price.is_paid for price in self.prices)

    @property
    def reaches(self) -> bool:
        """Whether every repeat got there."""
        return bool(self.prices) and self.num_reached == len(self.prices)

    @property
    def steps(self) -> float:
        """Median over repeats; ∞ where half of them did not get there."""
        return _median([price.steps for price in self.prices])

    @property
    def num_bytes(self) -> float | None:
        """Bytes that a rank had sent, likewise; None where they were not counted."""
        return _known_median([price.num_bytes for price in self.prices])

    @property
    def time_s(self) -> float | None:
        """Seconds, likewise; None where there is no clock."""
        return _known_median([price.time_s for price in self.prices])


def _median(values: list[float]) -> float:
    return statistics.median_high(values) if values else math.inf


def _known_median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return _median(known) if known and len(known) == len(values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStudy:
    """One workload on one number of workers: `rows` with the dense one first. `target` is of `metric`, held out;
    `batch_size` counts the samples of a step on all workers together."""

    suite: str
    workload: str
    where: str
    evidence: str
    num_workers: int
    metric: str
    target: float
    rule: str
    rows: tuple[TargetRow, ...]
    batch_size: int = 0

    @property
    def title(self) -> str:
        """The workload and where it ran."""
        return f"{self.workload}, {self.where}"

    @property
    def dense(self) -> TargetRow:
        """The method that the target is from."""
        return self.rows[0]

    @property
    def clock(self) -> str:
        """What the times of its rows are."""
        return ", ".join(sorted({row.clock for row in self.rows if row.clock != "none"})) or "none"
