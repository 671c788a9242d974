"""An optimizer with one rule per tensor: the loop that `lars`, `lamb`, `frozen-adam` and a worker of servers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT, StateDict

TensorRule = Callable[[Tensor, Tensor, dict[str, Any], Mapping[str, Any]], object]
"""Steps `weights` by `grad` of its shape, in place; `state` is the tensor's own, empty at first; then its group."""


class TensorwiseOptimizer(torch.optim.Optimizer):
    """Steps every tensor that has a gradient by `rule`. `defaults` are what torch's groups hold, e.g. `lr`."""

    def __init__(self, parameters: ParamsT, rule: TensorRule, **defaults: float) -> None:
        super().__init__(parameters, defaults)
        self._rule = rule

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Go on from what `state_dict()` gave, every state in the format in which it was kept.

        torch turns states into the format of their parameter; those of 16-bit parameters are float32.
        """
        super().load_state_dict(state_dict)
        numbers = (number for group in state_dict["param_groups"] for number in group["params"])
        parameters = (weights for group in self.param_groups for weights in group["params"])
        for number, weights in zip(numbers, parameters, strict=True):
            for key, kept in state_dict["state"].get(number, {}).items():
                if isinstance(kept, Tensor):
                    self.state[weights][key] = kept.to(weights.device, copy=True)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step of all tensors; `closure` is not called."""
        for group in self.param_groups:
            for weights in group["params"]:
                if weights.grad is None:
                    continue
                state = self.state.get(weights, {})
                self._rule(weights, weights.grad, state, group)
                if state:  # a rule without any leaves none behind, in checkpoints neither
                    self.state[weights] = state
        return None
