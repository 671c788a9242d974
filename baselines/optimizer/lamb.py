"""LAMB: Adam's direction, for each tensor made as long as the tensor itself, times the rate.

Paper: You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 minutes, ICLR 2020. For each tensor
w, with Adam's moments of its gradient g corrected for their start (m̂, v̂) and weight decay λ:

    r = m̂ / (√v̂ + ε) + λ·w;    w ← w − lr · φ(‖w‖)/‖r‖ · r,    φ the identity

The ratio is 1 where ‖w‖ or ‖r‖ is 0. So the step has length lr·‖w‖ exactly, and with ε → 0 and λ = 0 multiplying all
gradients by a constant changes nothing.

Biases and the scales of normalisation layers are excluded, as in the authors' code: no weight decay, and Adam's own
step. Excluded is every tensor of one dimension or none, and those whose name holds one of the words of `exclude`,
separated by commas.

Defaults as in the paper: β 0.9 and 0.999, ε 1e-6, λ 0.01. Differs from the paper: no clipping of φ. Around it
`linear-scaling` warms the rate up (its authors take the square root of the batch's growth: `power=0.5`), and
`polynomial-decay` with power 1 lets it fall. Not verified against the paper's text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Parameters, Scope, Slot
from baselines.exclusion import check_rate, groups_of, require
from baselines.stepping import TensorwiseOptimizer


@dataclass(frozen=True, slots=True)
class Lamb:
    card: ClassVar[Card] = Card(
        name="lamb",
        slot=Slot.OPTIMIZER,
        summary="Adam's direction, each tensor's step as long as the tensor times the rate",
        paper="You et al., Large Batch Optimization for Deep Learning, ICLR 2020",
    )
    lr: float = 0.002
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    weight_decay: float = 0.01
    exclude: str = ""

    def __post_init__(self) -> None:
        check_rate(self.lr)
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, name, getattr(self, name), "0 or more and less than 1")
        require(self.eps > 0, "eps", self.eps, "a small number above 0, e.g. 1e-6")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")

    @property
    def scope(self) -> Scope:
        """Norms are of whole tensors."""
        return Scope.TENSOR

    @property
    def applies_momentum(self) -> bool:
        """Always: its first moment."""
        return True

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """Raises: ValueError if `exclude` names words and the parameters come without names."""
        return TensorwiseOptimizer(groups_of(parameters, self.exclude), self._step, lr=self.lr)

    def _step(self, weights: Tensor, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        """One tensor's step; `state` holds `step`, `exp_avg` and `exp_avg_sq`, called as in torch's Adam."""
        grad = grad.to(torch.promote_types(grad.dtype, torch.float32))  # in float16 v and ε vanish
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(grad), exp_avg_sq=torch.zeros_like(grad))
        state["step"] += 1
        step, mean, square = state["step"], state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(grad, 1 - self.beta1)
        square.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        root = square.div(1 - self.beta2**step).sqrt_().add_(self.eps)
        direction = mean.div(1 - self.beta1**step).div_(root)
        if not group["excluded"]:
            direction.add_(weights, alpha=self.weight_decay)
            direction.mul_(trust_ratio(weights, direction))
        weights.sub_(direction, alpha=group["lr"])


def trust_ratio(weights: Tensor, direction: Tensor) -> Tensor:
    """‖w‖/‖r‖ of one tensor, a float64 scalar on its device, whose sums of squares do not show their order; 1 where one
    of the norms is 0."""
    own, length = (torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in (weights, direction))
    return torch.where((own > 0) & (length > 0), own / length, torch.ones_like(own))
