"""Stochastic gradient descent with momentum, as in torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import NUMBERS, Card, Parameters, Scope, Slot, check_not_negative


@dataclass(frozen=True, slots=True)
class Sgd:
    card: ClassVar[Card] = Card(
        name="sgd",
        slot=Slot.OPTIMIZER,
        summary="SGD with momentum",
        paper="Sutskever et al., ICML 2013",
        dtypes=NUMBERS,
    )
    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative(lr=self.lr, weight_decay=self.weight_decay)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; use 0 or more and less than 1")

    @property
    def scope(self) -> Scope:
        """Element-wise, so a server may step its part."""
        return Scope.ELEMENT

    @property
    def applies_momentum(self) -> bool:
        """Unless `momentum` is 0."""
        return self.momentum > 0.0

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """torch's `SGD`, dampening 0 and no Nesterov momentum."""
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
