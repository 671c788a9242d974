"""Adam with decoupled weight decay, as in torch.

Paper: Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import NUMBERS, Card, Parameters, Scope, Slot, check_not_negative


@dataclass(frozen=True, slots=True)
class Adam:
    card: ClassVar[Card] = Card(
        name="adam",
        slot=Slot.OPTIMIZER,
        summary="Adam with decoupled weight decay",
        paper="Kingma and Ba, ICLR 2015; Loshchilov and Hutter, ICLR 2019",
        dtypes=NUMBERS - {torch.float16},  # in which v and ε vanish, and a step divides by 0
    )
    lr: float = 0.001
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        check_not_negative(lr=self.lr, weight_decay=self.weight_decay)

    @property
    def scope(self) -> Scope:
        """Element-wise, so a server may step its part."""
        return Scope.ELEMENT

    @property
    def applies_momentum(self) -> bool:
        """Always: β₁ is torch's default."""
        return True

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """torch's `AdamW`; without weight decay that is Adam."""
        return torch.optim.AdamW(parameters, lr=self.lr, weight_decay=self.weight_decay)
