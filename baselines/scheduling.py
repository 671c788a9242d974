"""What schedules of the learning rate share: each wraps an optimizer and gives a step's rate as a multiple of its own.

Several may be named; their factors multiply. Every parameter group counts its steps in `num_steps` and keeps the first
rate in `base_lr`, so a checkpoint of the optimizer keeps the schedule's place, and so does an optimizer of one layer or
of a server's part. A step that is skipped does not count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from math import prod
from typing import Any

import torch

from baselines.api import AppliesMomentum, OptimizerSpec, Parameters, Scope


class Scheduled(ABC):
    """What every schedule is; `inner` is the spec that it goes around."""

    __slots__ = ()
    inner: OptimizerSpec

    @abstractmethod
    def factor_at(self, step: int) -> float:
        """The rate of step `step`, counted from 0, as a multiple of the inner optimizer's."""

    @property
    def scope(self) -> Scope:
        """The inner optimizer's: scaling a rate looks at no gradient."""
        return self.inner.scope

    @property
    def applies_momentum(self) -> bool:
        """Whether the inner optimizer does."""
        return isinstance(self.inner, AppliesMomentum) and self.inner.applies_momentum

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """What all schedules go around; they scale its rate before each step."""
        schedules, inner = [self], self.inner
        while isinstance(inner, Scheduled):
            schedules.append(inner)
            inner = inner.inner
        optimizer = inner.build(parameters)
        for group in optimizer.param_groups:
            group.update(base_lr=group["lr"], num_steps=0)
        optimizer.register_step_pre_hook(partial(_set_rates, schedules))
        return optimizer


def _set_rates(schedules: list[Scheduled], optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * prod(own.factor_at(group["num_steps"]) for own in schedules)
        group["num_steps"] += 1
