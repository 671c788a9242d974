"""Polynomial decay: behind its warm-up the learning rate falls to 0 as a power of what is left of the run.

Papers: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, arXiv 1708.03888, 2017 (LARS, power
2); You et al., Large Batch Optimization for Deep Learning, ICLR 2020 (LAMB, power 1). In step t, counted from 0, of T

    rate = lr for t < `after`;    lr · (1 − t/T)^power else

where T is `num_steps` and `after` the length of the warm-up. As in Caffe and in BERT's code t counts the warm-up's
steps too, so that the rate falls a little where the warm-up ends. Behind T steps the rate is 0 and nothing is learnt.

Written last: `lars+linear-scaling(times=8.0, warmup_steps=50)+polynomial-decay(num_steps=900, power=2.0, after=50)`.

Defaults: LARS's power, and as many steps as the paper has epochs. The power of LARS was read in the paper; that of LAMB
and how t counts were not verified against the papers' texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, OptimizerSpec, Slot
from baselines.exclusion import require
from baselines.scheduling import Scheduled


@dataclass(frozen=True, slots=True)
class PolynomialDecay(Scheduled):
    inner: OptimizerSpec
    card: ClassVar[Card] = Card(
        name="polynomial-decay",
        slot=Slot.OPTIMIZER,
        summary="the rate falls to 0 as a power of what is left of the run",
        paper="You, Gitman and Ginsburg, arXiv 1708.03888, 2017",
        wraps=True,
    )
    num_steps: int = 100
    power: float = 2.0
    after: int = 0

    def __post_init__(self) -> None:
        require(self.num_steps >= 1, "num_steps", self.num_steps, "how many steps the run has, 1 or more")
        require(self.power > 0, "power", self.power, "2 (LARS), 1 (LAMB) or another number above 0")
        require(0 <= self.after < self.num_steps, "after", self.after, f"0 to {self.num_steps - 1} steps of warm-up")

    def factor_at(self, step: int) -> float:
        """See `Scheduled`."""
        return float(max(0.0, 1 - step / self.num_steps) ** self.power) if step >= self.after else 1.0
