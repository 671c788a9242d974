"""Truncated gradient: SGD that every K steps draws small weights toward zero, so that the model becomes sparse.

Paper: Langford, Li and Zhang, Sparse Online Learning via Truncated Gradient, JMLR 10, 2009. After every K-th step

    w ← T₁(w − lr · g, lr · K · gravity, θ)

    T₁(v, α, θ) = max(0, v − α) for 0 ≤ v ≤ θ,  min(0, v + α) for −θ ≤ v < 0,  v for |v| > θ

and in the other steps w ← w − lr · g. Steps count from 1. gravity = 0 is SGD without momentum; θ beyond all weights
(1e30) with K = 1 is SGD with soft thresholding, an online counterpart of L1 regularisation.

Our reading: the survey lists it with compression, yet it works on *weights*. They become sparse and could be stored or
read sparsely; gradients on the wire stay dense, and no byte is saved in training.

Defaults are ours: the paper searches gravity, and learns linear models. Differs from the paper: every parameter is
drawn, biases and normalisation scales included (a small θ spares those near 1); its lazy update of features that an
example lacks has no counterpart in dense layers. Formulas not verified against the paper's text, but against others'
accounts of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from baselines.api import Card, Parameters, Scope, Slot
from baselines.stepping import TensorwiseOptimizer


@dataclass(frozen=True, slots=True)
class TruncatedGradient:
    card: ClassVar[Card] = Card(
        name="truncated-gradient",
        slot=Slot.OPTIMIZER,
        summary="SGD that draws small weights to zero every few steps",
        paper="Langford, Li and Zhang, JMLR 2009",
    )
    lr: float = 0.05
    gravity: float = 1e-4
    every: int = 10
    threshold: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr is {self.lr}; use a learning rate above 0, e.g. 0.05")
        if not 0 <= self.gravity < math.inf:
            raise ValueError(f"gravity is {self.gravity}; use 0 (plain SGD) or a small number above it, e.g. 0.0001")
        if self.every < 1:
            raise ValueError(f"every is {self.every}; weights are drawn after every 1, 2, … steps")
        if not self.threshold >= 0:
            raise ValueError(f"threshold is {self.threshold}; use 0 or more, or 1e30 to draw all weights")

    @property
    def scope(self) -> Scope:
        """Element-wise: each weight is drawn by itself."""
        return Scope.ELEMENT

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """An optimizer of these parameters that counts its own steps."""
        return TensorwiseOptimizer(parameters, self._step, lr=self.lr)

    def _step(self, weights: Tensor, grad: Tensor, state: dict[str, Any], group: Mapping[str, Any]) -> None:
        weights.add_(grad, alpha=-group["lr"])
        # Counted per tensor, since a server or a pre-hook steps one alone.
        state["num_steps"] = state.get("num_steps", 0) + 1
        if state["num_steps"] % self.every == 0:
            weights.copy_(truncated(weights, group["lr"] * self.every * self.gravity, self.threshold))


def truncated(weights: Tensor, pull: float, threshold: float) -> Tensor:
    """T₁ of each weight: those of at most `threshold` in size drawn by `pull` toward 0, never beyond it."""
    return torch.where(weights.abs() <= threshold, functional.softshrink(weights, pull), weights)
