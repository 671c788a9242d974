"""Step decay: the learning rate falls by a factor at given steps.

Paper: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, arXiv 1706.02677, 2017, section 5.1, as
He et al., CVPR 2016: a tenth at the epochs 30, 60 and 80 of 90. In step t, counted from 0,

    rate = lr · factor ^ (the number of `at` that are at most t)

Written last, behind `linear-scaling`: `sgd(lr=0.1)+linear-scaling(times=8.0, warmup_steps=500)+step-decay(at=(3000,
6000, 8000))`.

Differs from the paper: `at` counts steps, since a strategy does not know the data; the defaults are the paper's epochs,
right where an epoch is one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from baselines.api import Card, OptimizerSpec, Slot
from baselines.exclusion import require
from baselines.scheduling import Scheduled


@dataclass(frozen=True, slots=True)
class StepDecay(Scheduled):
    inner: OptimizerSpec
    card: ClassVar[Card] = Card(
        name="step-decay",
        slot=Slot.OPTIMIZER,
        summary="the rate falls to a tenth at given steps",
        paper="Goyal et al., arXiv 1706.02677, 2017",
        wraps=True,
    )
    at: tuple[Any, ...] = (30, 60, 80)
    factor: float = 0.1

    def __post_init__(self) -> None:
        whole = all(type(step) is int and step > 0 for step in self.at)
        require(whole and list(self.at) == sorted(set(self.at)), "at", self.at, "steps above 0 in order, e.g. (30, 60)")
        require(0 < self.factor <= 1, "factor", self.factor, "a number above 0 and up to 1, e.g. 0.1")

    def factor_at(self, step: int) -> float:
        """See `Scheduled`."""
        return float(self.factor ** sum(own <= step for own in self.at))
