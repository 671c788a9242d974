"""Medians with percentile bootstrap intervals, over repeats and never over the steps of one run.

Repeats are the unit that was drawn independently; steps within one process share its luck.
The percentile bootstrap of a median is wide but honest for small n: with n repeats it can at
best cover the true median with probability 1 − 2^(1−n), so below `FEWEST_FOR_LEVEL` repeats the
interval spans all of them and covers less than the 95 % it is named after (`Interval.is_thin`).

Source: Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
NUM_RESAMPLES = 4000
FEWEST_FOR_LEVEL = 6
SEED = 20210314

Floats = NDArray[np.float64]


class StatsError(ValueError):
    """Values no statistic can be made of; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 95 % interval over `n` repeats. The bounds of one repeat are NaN: unknown, not zero wide."""

    median: float
    low: float
    high: float
    n: int

    @property
    def has_bounds(self) -> bool:
        """Whether there were enough repeats (two) to say anything about spread."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def is_thin(self) -> bool:
        """Whether there are too few repeats for the interval to cover 95 %."""
        return self.n < FEWEST_FOR_LEVEL

    def times(self, scale: float) -> Interval:
        """The same in another unit; `scale` is positive."""
        return Interval(self.median * scale, self.low * scale, self.high * scale, self.n)

    def excludes(self, value: float) -> bool:
        """Whether `value` lies outside the interval; False where the bounds are unknown."""
        return self.has_bounds and not self.low <= value <= self.high


def exactly(value: float, n: int) -> Interval:
    """The interval of a quantity that is `value` by definition, such as a reference over itself."""
    return Interval(value, value, value, n)


def bootstrap_interval(
    values: Sequence[float],
    *,
    level: float = LEVEL,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """The median of `values` with its percentile bootstrap interval.

    ∞ is a value like any other (a run that never converged). Raises: StatsError if empty or NaN.
    """
    sample = _checked(values)
    median = float(np.median(sample))
    if len(sample) < 2:
        return Interval(median, math.nan, math.nan, len(sample))
    low, high = _bounds(_resampled_medians(sample, num_resamples), level)
    return Interval(median, low, high, len(sample))


def paired_ratio(
    a: Sequence[float],
    b: Sequence[float],
    *,
    level: float = LEVEL,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """The median of aᵢ/bᵢ over interleaved repeats: what drifts slowly touches both halves of a pair and cancels.

    Raises: StatsError if the lengths differ, a value is NaN, or a `b` is not positive.
    """
    if len(a) != len(b):
        raise StatsError(f"paired ratio of {len(a)} and {len(b)} repeats; pass only repeats that both sides have")
    ratios = _checked(a) / _positive(b)
    return bootstrap_interval(ratios.tolist(), level=level, num_resamples=num_resamples)


def unpaired_ratio(
    a: Sequence[float],
    b: Sequence[float],
    *,
    level: float = LEVEL,
    num_resamples: int = NUM_RESAMPLES,
) -> Interval:
    """median(a)/median(b) of runs that were not interleaved; each side is resampled by itself. `n` is the smaller side.

    Raises: StatsError as `paired_ratio`, but for the lengths.
    """
    above, below = _checked(a), _positive(b)
    n = min(len(above), len(below))
    median = float(np.median(above) / np.median(below))
    if n < 2:
        return Interval(median, math.nan, math.nan, n)
    ratios = _resampled_medians(above, num_resamples) / _resampled_medians(below, num_resamples, stream=1)
    return Interval(median, *_bounds(ratios, level), n)


def _checked(values: Sequence[float]) -> Floats:
    sample = np.asarray(values, dtype=np.float64)
    if sample.size == 0:
        raise StatsError("no values: an interval needs at least one repeat")
    if np.isnan(sample).any():
        raise StatsError(f"NaN among {sample.size} values; leave out repeats that were not measured")
    return sample


def _positive(values: Sequence[float]) -> Floats:
    sample = _checked(values)
    if not ((sample > 0) & np.isfinite(sample)).all():
        raise StatsError(f"ratio to {sample.min()}: the denominator must be positive and finite")
    return sample


def _resampled_medians(sample: Floats, num_resamples: int, *, stream: int = 0) -> Floats:
    picks = _picks(len(sample), num_resamples, stream)
    return np.asarray(np.median(sample[picks], axis=1), dtype=np.float64)


@cache
def _picks(n: int, num_resamples: int, stream: int) -> NDArray[np.int64]:
    """The same draws for every sample of `n`: an interval depends on its values alone, not on what else was asked.

    Two sides that are resampled independently of each other take different streams.
    """
    return np.random.default_rng([SEED, n, stream]).integers(0, n, size=(num_resamples, n))


def _bounds(statistics: Floats, level: float) -> tuple[float, float]:
    """Outer order statistics: no interpolation, which ∞ would turn into NaN."""
    ordered = np.sort(statistics)
    tail = (1.0 - level) / 2.0
    last = len(ordered) - 1
    return float(ordered[math.floor(tail * last)]), float(ordered[math.ceil((1.0 - tail) * last)])
