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

A floor when v is frozen: v ← max(v, `floor` · mean of the tensor's v). An element without a gradient until then, or
hardly any, would be divided by ε for ever after, and signs of momenta reach every element: they have no 0. The scale s
of a tensor's signs is at most about √mean(v), since s² is the mean of squared means of g. So with the floor a sign
moves an element by at most lr/√floor, ten learning rates by default; while error is fed back, signs take back what they
add, and an unused element moves to and fro by that much and no further. `floor=0.0` is the paper's rule, in which two
dead units are enough to diverge. A tensor whose v is all zeros is not frozen before it has had a gradient.

Differs from the paper: 1-bit Adam compresses the momentum, which here is the work of the compression slot; this file
alone compresses nothing. The floor is ours: DeepSpeed offers a mask by hand. `freeze_after` is 100 for runs of some
hundreds of steps; the paper freezes after some 15–20 % of all steps, and DeepSpeed's default is 100,000. Without weight
decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Parameters, Scope, Slot
from baselines.stepping import TensorwiseOptimizer


@dataclass(frozen=True, slots=True)
class FrozenAdam:
    card: ClassVar[Card] = Card(
        name="frozen-adam",
        slot=Slot.OPTIMIZER,
        summary="Adam whose second moment is frozen after warm-up",
        paper="Tang et al., 1-bit Adam, ICML 2021",
    )
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    freeze_after: int = 100
    floor: float = 0.01

    def __post_init__(self) -> None:
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; use 0 or more and less than 1")
        if not (self.lr > 0 and self.eps > 0):
            raise ValueError(f"lr is {self.lr} and eps {self.eps}; both must be above 0")
        if self.freeze_after < 1:
            raise ValueError(f"freeze_after is {self.freeze_after}; the second moment needs at least 1 step")
        if not 0 <= self.floor <= 1:
            raise ValueError(f"floor is {self.floor}; use a share of the mean from 0 (none) to 1, e.g. 0.01")

    @property
    def scope(self) -> Scope:
        """The floor is of a tensor's mean."""
        return Scope.TENSOR if self.floor else Scope.ELEMENT

    @property
    def applies_momentum(self) -> bool:
        """Always: its first moment."""
        return True

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """An optimizer of these parameters, with moments of their shapes as its state."""
        return TensorwiseOptimizer(parameters, self._step, lr=self.lr)

    def _step(self, weights: Tensor, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        """One tensor's step; `state` holds `step`, `exp_avg` and `exp_avg_sq`, called as in torch's Adam, and the step
        at whose end v was frozen (0: not yet)."""
        grad = grad.to(torch.promote_types(grad.dtype, torch.float32))  # in float16 v and ε vanish
        if not state:
            moments = {key: torch.zeros_like(grad) for key in ("exp_avg", "exp_avg_sq")}
            state.update(step=0, frozen_after=0, **moments)
        state["step"] += 1
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(grad, 1 - self.beta1)
        if not state["frozen_after"]:
            square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        correction = (1 - self.beta2 ** (state["frozen_after"] or step)) ** 0.5
        root = square.sqrt().div_(correction).add_(self.eps)
        weights.sub_(mean / root, alpha=group["lr"] / (1 - self.beta1**step))
        if step >= self.freeze_after and not state["frozen_after"] and bool(square.any()):
            state["frozen_after"] = step
            square.clamp_(min=self.floor * float(square.mean()))
