"""Linear scaling: the learning rate grows with the batch, step by step from the rate of the base batch.

Paper: Goyal et al., Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour, arXiv 1706.02677, 2017. When a batch is
k times larger, its rate is k times larger, reached by a gradual warm-up: in step t, counted from 0, of `warmup_steps`

    rate = lr · (1 + (k^power − 1) · min(1, t / warmup_steps))

where lr is the rate of the optimizer inside. The paper starts at lr and takes 5 epochs, on a base batch of 256 with
lr 0.1. Written behind the optimizer: `sgd(lr=0.1)+linear-scaling(times=8.0, warmup_steps=500)`; k is `times`. The
paper's decay is `step-decay`.

`power` 1 is the paper's rule; 0.5 the square root, as LAMB's authors scale. Rates of all parameter groups are scaled.
Momentum is left as it is: torch's SGD multiplies the rate after the momentum, so no correction (section 3.1) is due;
`lars` has the rate within its momentum, as its authors do.

Differs from the paper: batch and base batch are given as their ratio, and warm-up in steps, since a strategy knows
neither the batch nor the data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, OptimizerSpec, Slot, layers_of
from baselines.exclusion import require
from baselines.scheduling import Scheduled


@dataclass(frozen=True, slots=True)
class LinearScaling(Scheduled):
    inner: OptimizerSpec
    card: ClassVar[Card] = Card(
        name="linear-scaling",
        slot=Slot.OPTIMIZER,
        summary="the rate times the batch's growth, after a gradual warm-up",
        paper="Goyal et al., arXiv 1706.02677, 2017",
        wraps=True,
    )
    times: float = 1.0
    warmup_steps: int = 0
    power: float = 1.0

    def __post_init__(self) -> None:
        require(0 < self.times < 1e6, "times", self.times, "how many times larger the batch is, e.g. 8.0")
        require(self.warmup_steps >= 0, "warmup_steps", self.warmup_steps, "a number of steps from 0 up")
        require(0 <= self.power <= 1, "power", self.power, "1 (linear), 0.5 (square root) or between 0 and 1")
        twice = any(isinstance(own, LinearScaling) for own in layers_of(self.inner))
        require(not twice, "linear-scaling", "named twice", "it once")

    def factor_at(self, step: int) -> float:
        """See `Scheduled`."""
        grown: float = self.times**self.power
        return 1.0 + (grown - 1.0) * (min(1.0, step / self.warmup_steps) if self.warmup_steps else 1.0)
