"""Bayesian tuning: the next settings to try are where a Gaussian process expects the largest improvement of step time.

Paper: Peng et al., ByteScheduler, SOSP 2019, section 5 (partition and credit size). After `random_trials` settings (the
first as written, then drawn at random), a Gaussian process (Matérn 5/2) is fitted to y = −ln(step time) over the knobs,
each scaled to 0 … 1 (its logarithm, where it says so), and the next setting maximises the expected improvement
E[max(0, y − y_best − ξ)], ξ = 0.01: one per cent of the step time. After `trials` settings of `steps` steps, the one
with the shortest step is kept. Where tensors are `size_scale` times smaller than what they stand for, so are
the ranges of sizes. A setting as written beyond a range is tried and kept if it is the fastest, but the process is not
fitted to it: it would stand on the range's edge with a time that is not the edge's.

Nothing is remembered: the process is fitted anew from all that was tried, so the same history and `seed` propose the
same. A proposal takes some 0.15 s, on the clock of training.

Differs from the paper: checked against the authors' public code, which uses the same library (`bayesian-optimization`)
and the same criterion, but 15 settings, the first 10 at random, ξ = 0.1 s on the step time, and linear
scales. Here the noise of a
measurement is taken as a hundredth of the variance over the settings tried, and the process's length scale is kept to
0.1 … 10 of a knob's range: free, it collapses with so few settings. Not verified against the paper's text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Knob, Slot, Tried, size

EXPECTED_GAIN = 0.01
SIZES = ("_bytes", "_elements")  # ends of names of knobs that shrink along with the tensors
NOISE_VARIANCE = 0.01
NUM_SEEDS = 1 << 32  # of numpy's generator
LENGTH_SCALE, LENGTH_SCALES = 0.5, (0.1, 10.0)
NUM_CANDIDATES, NUM_REFINED = 1_000, 2  # the library's defaults take half a second


@dataclass(frozen=True, slots=True)
class Bayesian:
    card: ClassVar[Card] = Card(
        name="bayesian",
        slot=Slot.TUNING,
        summary="settings searched by expected improvement while training",
        paper="Peng et al., ByteScheduler, SOSP 2019, section 5",
    )
    trials: int = 12
    steps: int = 3
    random_trials: int = 4
    seed: int = 1
    size_scale: int = size(1, "scale")

    def __post_init__(self) -> None:
        if min(self.trials, self.steps, self.random_trials, self.size_scale) < 1 or self.seed < 0:
            raise ValueError(
                f"trials is {self.trials}, steps {self.steps}, random_trials {self.random_trials}, seed {self.seed}, "
                f"size_scale {self.size_scale}; use at least 1 of each and a seed from 0 on"
            )

    @property
    def num_trials(self) -> int:
        """Settings that are tried, the one as written included."""
        return self.trials

    @property
    def num_steps(self) -> int:
        """Steps per setting."""
        return self.steps

    def propose(self, knobs: Mapping[str, Knob], tried: Sequence[Tried]) -> Mapping[str, float]:
        """The most promising setting next; after `trials`, the one with the shortest step."""
        if len(tried) >= self.trials:
            return min(tried, key=lambda one: one.step_s).values
        ranges = {name: _scaled(name, knob, self.size_scale) for name, knob in knobs.items()}
        unit = _suggest(ranges, tried, self.random_trials, (1_009 * self.seed + len(tried)) % NUM_SEEDS)
        return {name: _from_unit(knob, unit[name]) for name, knob in ranges.items()}


def _scaled(name: str, knob: Knob, size_scale: int) -> Knob:
    """The range of a size where tensors are `size_scale` times smaller; other ranges stay."""
    if size_scale == 1 or not name.endswith(SIZES):
        return knob
    # Whole numbers, as sizes are: rounded, a proposal stays within the range.
    return Knob(max(1, round(knob.low / size_scale)), max(2, round(knob.high / size_scale)), knob.log)


def _suggest(knobs: Mapping[str, Knob], tried: Sequence[Tried], num_random: int, seed: int) -> dict[str, float]:
    """The next setting, each knob on its scale of 0 … 1."""
    # Here and not above: these take seconds to load, and the catalogue loads every plug-in.
    from bayes_opt import TargetSpace
    from bayes_opt.acquisition import ExpectedImprovement
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import Matern

    space = TargetSpace(None, dict.fromkeys(knobs, (0.0, 1.0)), allow_duplicate_points=True)
    inside = [one for one in tried if all(k.low <= one.values[n] <= k.high for n, k in knobs.items())]
    if len(tried) < num_random or not inside:
        point = space.random_sample(random_state=seed)
    else:
        for one in inside:
            space.register({n: _to_unit(knob, one.values[n]) for n, knob in knobs.items()}, -math.log(one.step_s))
        kernel = Matern(LENGTH_SCALE, LENGTH_SCALES, nu=2.5)
        process = GaussianProcessRegressor(kernel, alpha=NOISE_VARIANCE, normalize_y=True, random_state=seed)
        improvement = ExpectedImprovement(xi=EXPECTED_GAIN)
        point = improvement.suggest(process, space, NUM_CANDIDATES, NUM_REFINED, random_state=seed)
    return {name: float(value) for name, value in space.array_to_params(point).items()}


def _to_unit(knob: Knob, value: float) -> float:
    low, high, value = (math.log(x) if knob.log else x for x in (knob.low, knob.high, value))
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _from_unit(knob: Knob, unit: float) -> float:
    value = knob.low * (knob.high / knob.low) ** unit if knob.log else knob.low + (knob.high - knob.low) * unit
    return min(knob.high, max(knob.low, value))
