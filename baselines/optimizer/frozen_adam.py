"""Adam whose second moment stops changing after N steps: the optimizer's half of 1-bit Adam.

Paper: Tang et al., 1-bit Adam, ICML 2021. Not verified against the paper's text; read against DeepSpeed's `OnebitAdam`.
With n = min(t, N) at step t (from 1):

    m ← β₁·m + (1 − β₁)·g
    v ← β₂·v + (1 − β₂)·g²                                           for t ≤ N only
    w ← w − lr · (m / (1 − β₁ᵗ)) / (√(v / (1 − β₂ⁿ)) + ε)

Up to step N this is torch's Adam. From then on the step is linear in the gradients, momentum SGD with a rate an
element, which is why what compression loses can be fed back and cancels over time.

v's bias correction is frozen with v: if it went on, v/(1 − β₂ᵗ) would go on shrinking to v and steps grow, by up to
1/√(1 − β₂ᴺ), 3.2 times for N = 100. DeepSpeed corrects neither moment, before or after (its `bias_correction` is read
and not used), so its first steps are larger than Adam's, and its v when frozen the uncorrected one.

Differs from the paper: 1-bit Adam compresses the momentum, which here is the work of the compression slot; this file
alone compresses nothing. `freeze_after` is 100 for runs of some hundreds of steps; the paper freezes after some 15–20 %
of all steps, and DeepSpeed's default is 100,000. Without weight decay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, overload

import torch
from torch import Tensor

from baselines.api import Card, Slot


@dataclass(frozen=True, slots=True)
class FrozenAdam:
    card: ClassVar[Card] = Card(
        name="frozen-adam",
        slot=Slot.OPTIMIZER,
        summary="Adam whose second moment is frozen after warm-up",
        paper="Tang et al., 1-bit Adam, ICML 2021",
    )
    element_wise: ClassVar[bool] = True
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    freeze_after: int = 100

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; use 0 or more and less than 1")
        if not (self.lr > 0 and self.eps > 0):
            raise ValueError(f"lr is {self.lr} and eps {self.eps}; both must be above 0")
        if self.freeze_after < 1:
            raise ValueError(f"freeze_after is {self.freeze_after}; the second moment needs at least 1 step")

    @property
    def applies_momentum(self) -> bool:
        return True

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return _FreezingAdam(parameters, self)


class _FreezingAdam(torch.optim.Optimizer):
    """State a parameter: `step`, `exp_avg` and `exp_avg_sq`, called as in torch's Adam."""

    def __init__(self, parameters: Iterable[Tensor], rule: FrozenAdam) -> None:
        super().__init__(parameters, {"lr": rule.lr})
        self._rule = rule

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group["lr"])
        return None

    def _update(self, parameter: Tensor, grad: Tensor, lr: float) -> None:
        rule, state = self._rule, self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(grad, 1 - rule.beta1)
        if step <= rule.freeze_after:
            square.mul_(rule.beta2).addcmul_(grad, grad, value=1 - rule.beta2)
        correction = (1 - rule.beta2 ** min(step, rule.freeze_after)) ** 0.5
        parameter.addcdiv_(mean, square.sqrt().div_(correction).add_(rule.eps), value=-lr / (1 - rule.beta1**step))
