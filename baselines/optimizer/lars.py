"""LARS: SGD with momentum whose rate is set for each tensor by the ratio of its norm to its gradient's.

Paper: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, arXiv 1708.03888, 2017. For each tensor
w with gradient g, rate lr, trust η, weight decay β and momentum m:

    λ = η·‖w‖ / (‖g‖ + β·‖w‖);    u ← m·u + lr·λ·(g + β·w);    w ← w − u

so a step without momentum is at most lr·η·‖w‖ long, and multiplying g by a constant changes nothing where β = 0.

Biases and the scales of normalisation layers are excluded, as in the experiments of the paper's authors: λ = 1 and
β = 0, which is SGD with momentum. Excluded is every tensor of one dimension or none, and those whose name holds one of
the words of `exclude`, separated by commas. λ = 1 too where ‖w‖ or ‖g‖ is 0.

Defaults η = 0.001, m = 0.9, β = 0.0005; lr may then be some units where biases allow it, as λ is small. Around it
`linear-scaling` warms lr up and `polynomial-decay` with power 2 lets it fall, as in the paper. Not verified against the
paper's text.
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
class Lars:
    card: ClassVar[Card] = Card(
        name="lars",
        slot=Slot.OPTIMIZER,
        summary="SGD with momentum, its rate scaled by each tensor's norm over its gradient's",
        paper="You, Gitman and Ginsburg, arXiv 1708.03888, 2017",
    )
    lr: float = 0.5
    momentum: float = 0.9
    weight_decay: float = 0.0005
    trust: float = 0.001
    exclude: str = ""

    def __post_init__(self) -> None:
        check_rate(self.lr)
        require(0 <= self.momentum < 1, "momentum", self.momentum, "0 or more and less than 1")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or more")
        require(self.trust > 0, "trust", self.trust, "a number above 0, e.g. 0.001")

    @property
    def scope(self) -> Scope:
        """Norms are of whole tensors."""
        return Scope.TENSOR

    @property
    def applies_momentum(self) -> bool:
        """Unless `momentum` is 0."""
        return self.momentum > 0.0

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """Raises: ValueError if `exclude` names words and the parameters come without names."""
        return TensorwiseOptimizer(groups_of(parameters, self.exclude), self._step, lr=self.lr)

    def _step(self, weights: Tensor, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        """One tensor's step; `state` holds `momentum_buffer`, u."""
        grad = grad.to(torch.promote_types(grad.dtype, torch.float32))  # in float16 norms overflow
        if not group["excluded"]:
            rate = group["lr"] * local_rate(weights, grad, self.trust, self.weight_decay)
            change = grad.add(weights, alpha=self.weight_decay).mul_(rate)
        else:
            change = grad.mul(group["lr"])
        if self.momentum:
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(grad)
            change = state["momentum_buffer"].mul_(self.momentum).add_(change)
        weights.sub_(change)


def local_rate(weights: Tensor, grad: Tensor, trust: float, weight_decay: float) -> Tensor:
    """λ of one tensor, a float64 scalar on its device; 1 where a norm is 0. Sums of squares do not show their order."""
    own, slope = (torch.linalg.vector_norm(tensor, dtype=torch.float64) for tensor in (weights, grad))
    ratio = trust * own / (slope + weight_decay * own)
    return torch.where((own > 0) & (slope > 0), ratio, torch.ones_like(ratio))
