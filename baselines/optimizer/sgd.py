"""Stochastic gradient descent with momentum, as in torch.

`exclude` names what weight decay leaves alone: every tensor whose name holds one of its words, separated by commas. The
one-hour recipe (Goyal et al., arXiv 1706.02677, 2017) decays no coefficients of BatchNorm, in our networks
`exclude='bn'`, and has Nesterov's momentum, `nesterov=True`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from baselines.api import NUMBERS, Card, Parameters, Scope, Slot, check_not_negative
from baselines.exclusion import groups_of


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
    nesterov: bool = False
    exclude: str = ""

    def __post_init__(self) -> None:
        check_not_negative(lr=self.lr, weight_decay=self.weight_decay)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; use 0 or more and less than 1")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov is True and momentum 0; give it momentum, e.g. 0.9")

    @property
    def scope(self) -> Scope:
        """Element-wise, so a server may step its part, unless names are needed, which parts do not have."""
        return Scope.TENSOR if self.exclude else Scope.ELEMENT

    @property
    def applies_momentum(self) -> bool:
        """Unless `momentum` is 0."""
        return self.momentum > 0.0

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """torch's `SGD`, dampening 0. Raises: ValueError if `exclude` names words and the parameters have no names."""
        groups = groups_of(parameters, self.exclude, scales=False) if self.exclude else parameters
        optimizer = torch.optim.SGD(groups, self.lr, self.momentum, 0, self.weight_decay, self.nesterov)
        for group in optimizer.param_groups:
            if group.get("excluded", False):
                group["weight_decay"] = 0.0
        return optimizer
