"""Medians with exact intervals, over repeats and never over the steps of one run.

Repeats are the unit that was drawn independently; steps within one process share its luck. The ends of a median's
interval are two of the repeats, whatever they are distributed like: the k-th from below and from above, with the
largest k at which a median lies outside in at most 5 % of cases. So six to eight repeats reach from the lowest to the
highest. Below `FEWEST_FOR_LEVEL` repeats not even that covers 95 %, and what spans them is a range, called and drawn as
one (`Interval.is_range`), which decides nothing. What is no median of one sample (a quantile, a ratio of medians, a
mean over pairs) has a percentile bootstrap.

Sources: Thompson, "On confidence ranges for the median", Annals of Mathematical Statistics 7, 1936; Efron, "Bootstrap
methods: another look at the jackknife", Annals of Statistics 7, 1979.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
NOISE = 0.01  # of a ratio of times; less is no gain
PREDICTION_ERROR = 0.04  # of a step by the predictor; 95 % of those that were measured too are within it
NUM_RESAMPLES = 4000
SEED = 20210314
ROUNDING = 1e-12  # of a level such as 1 − 0.05/2, which no float is

Floats = NDArray[np.float64]


class StatsError(ValueError):
    """Values no statistic can be made of; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A median with its 95 % interval over `n` repeats. The bounds of one repeat are NaN: unknown, not zero wide.

    `sample` are the repeats, for an interval at another level. An `exact` value (counted bytes, a simulated network's
    step) is no sample: it decides whatever `n` is. So does a prediction, whose bounds are its error (`foretold`).
    """

    median: float
    low: float
    high: float
    n: int
    sample: tuple[float, ...] = field(default=(), compare=False, repr=False)
    exact: bool = field(default=False, compare=False, repr=False)

    @property
    def has_bounds(self) -> bool:
        """Whether there were enough repeats (two) to say anything about spread."""
        return not (math.isnan(self.low) or math.isnan(self.high))

    @property
    def is_foretold(self) -> bool:
        """Whether it is a prediction."""
        return self.exact and self.low < self.high

    @property
    def is_range(self) -> bool:
        """Whether there are too few repeats for the bounds to cover 95 %: they say what was seen and decide nothing."""
        return not self.covers(LEVEL)

    def covers(self, level: float) -> bool:
        """Whether there are enough repeats for an interval of this level."""
        return self.exact or self.n >= fewest_for(level)

    def at(self, level: float) -> Interval:
        """The same at another level. Raises: StatsError where it was made without its repeats."""
        if self.exact or level == LEVEL:
            return self
        if not self.sample:
            raise StatsError("an interval without its repeats has one level; make it with median_interval")
        return median_interval(self.sample, level=level)

    def times(self, scale: float) -> Interval:
        """The same in another unit; `scale` is positive."""
        sample = tuple(scale * value for value in self.sample)
        return Interval(self.median * scale, self.low * scale, self.high * scale, self.n, sample, self.exact)

    def over(self, numerator: float) -> Interval:
        """`numerator` over it: a time as the speed that it means. The ends change places."""
        sample = tuple(numerator / value for value in self.sample)
        return Interval(
            numerator / self.median, numerator / self.high, numerator / self.low, self.n, sample, self.exact
        )


def fewest_for(level: float) -> int:
    """The fewest repeats whose span covers the median with this probability, 1 − 2^(1−n)."""
    return math.ceil(1 - math.log2(1 - level))


FEWEST_FOR_LEVEL = fewest_for(LEVEL)


def exactly(value: float, n: int) -> Interval:
    """The interval of what is counted, computed or 1 by definition, such as a reference over itself."""
    return Interval(value, value, value, n, exact=True)


def foretold(value: float) -> Interval:
    """The interval of a ratio of predicted times, of a machine that measured ones could contradict."""
    return Interval(value, value * (1 - PREDICTION_ERROR), value * (1 + PREDICTION_ERROR), 1, exact=True)


def computed(own: Interval) -> Interval:
    """The interval of a virtual clock's figures, which repeat: exact where all are the same."""
    return exactly(own.median, own.n) if len(set(own.sample)) == 1 else own


def median_interval(values: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The median of `values` with its exact interval, or their range where they are too few for the level.

    ∞ is a value like any other (a run that never converged). Raises: StatsError if empty or NaN.
    """
    sample = _checked(values)
    n, median = len(sample), float(np.median(sample))
    if n < 2:
        return Interval(median, math.nan, math.nan, n, tuple(sample.tolist()))
    ordered, left_out = np.sort(sample), num_left_out(n, level)
    return Interval(median, float(ordered[left_out]), float(ordered[n - 1 - left_out]), n, tuple(sample.tolist()))


@cache
def num_left_out(n: int, level: float) -> int:
    """How many of `n` repeats lie outside the interval at either end; 0 if they are too few for the level too.

    The median lies below the k-th smallest with the probability that fewer than k of n throws of a coin are heads.
    """
    outside, k = 0.0, 0
    while k < n // 2 and (outside := outside + 2 * math.comb(n, k) / 2**n) <= 1 - level + ROUNDING:
        k += 1
    return max(0, k - 1)


def paired_ratio(a: Sequence[float], b: Sequence[float], *, level: float = LEVEL) -> Interval:
    """The median of aᵢ/bᵢ over interleaved repeats: what drifts slowly touches both halves of a pair and cancels.

    Raises: StatsError if the lengths differ, a value is NaN, or a `b` is not positive.
    """
    if len(a) != len(b):
        raise StatsError(f"paired ratio of {len(a)} and {len(b)} repeats; pass only repeats that both sides have")
    ratios = _checked(a) / _positive(b)
    return median_interval(ratios.tolist(), level=level)


def ratio_by_repeat(above: Mapping[int, float], below: Mapping[int, float]) -> Interval | None:
    """The median of one over the other, repeat by repeat, of the repeats that both have; None where they share none.

    What never ended (∞) makes a ratio of ∞ above and of 0 below; a repeat in which neither did says nothing.
    """
    both = sorted(above.keys() & below.keys())
    ratios = [above[repeat] / below[repeat] for repeat in both if math.isfinite(min(above[repeat], below[repeat]))]
    return median_interval(ratios) if ratios else None


def gap_by_repeat(above: Mapping[int, float], below: Mapping[int, float]) -> Interval | None:
    """The median of one less the other, repeat by repeat, of the repeats that both have; None where they share none."""
    gaps = [above[repeat] - below[repeat] for repeat in sorted(above.keys() & below.keys())]
    return median_interval(gaps) if gaps else None


def unpaired_ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """median(a)/median(b) of runs that were not interleaved; each side is resampled by itself. `n` is the smaller side.

    Raises: StatsError as `paired_ratio`, but for the lengths.
    """
    above, below = _checked(a), _positive(b)
    n = min(len(above), len(below))
    median = float(np.median(above) / np.median(below))
    if n < 2:
        return Interval(median, math.nan, math.nan, n)
    ratios = _resampled_medians(above) / _resampled_medians(below, stream=1)
    return Interval(median, *_bounds(ratios), n)


def quantile_interval(values: Sequence[float], quantile: float) -> Interval:
    """A percentile bootstrap for another quantile than the median; at one level only. Raises: StatsError."""
    sample = _checked(values)
    found = float(np.quantile(sample, quantile))
    if len(sample) < 2:
        return Interval(found, math.nan, math.nan, len(sample))
    drawn = np.quantile(sample[_picks(len(sample))], quantile, axis=1)
    return Interval(found, *_bounds(np.asarray(drawn, dtype=np.float64)), len(sample))


def pairs_interval(values: Mapping[tuple[int, int], float], n: int) -> Interval:
    """The mean over pairs of `n` things, which are what is drawn: a pair counts as often as both of its things."""
    places = np.array(list(values))
    picks = _picks(n)
    counts = np.stack([np.bincount(pick, minlength=n) for pick in picks])
    weights = counts[:, places[:, 0]] * counts[:, places[:, 1]]
    total = weights.sum(axis=1)
    means = (weights @ np.array(list(values.values()), dtype=np.float64))[total > 0] / total[total > 0]
    return Interval(float(np.mean(list(values.values()))), *_bounds(means), n)


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


def _resampled_medians(sample: Floats, *, stream: int = 0) -> Floats:
    return np.asarray(np.median(sample[_picks(len(sample), stream)], axis=1), dtype=np.float64)


@cache
def _picks(n: int, stream: int = 0) -> NDArray[np.int64]:
    """The same draws for every sample of `n`: an interval depends on its values alone, not on what else was asked.

    Two sides that are resampled independently of each other take different streams.
    """
    return np.random.default_rng([SEED, n, stream]).integers(0, n, size=(NUM_RESAMPLES, n))


def _bounds(statistics: Floats) -> tuple[float, float]:
    """Outer order statistics: no interpolation, which ∞ would turn into NaN."""
    ordered = np.sort(statistics)
    tail = (1.0 - LEVEL) / 2.0
    last = len(ordered) - 1
    return float(ordered[math.floor(tail * last)]), float(ordered[math.ceil((1.0 - tail) * last)])
