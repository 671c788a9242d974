"""Top-k sparsification: each message sends its k elements of largest magnitude.

Paper: Stich et al., Sparsified SGD with Memory, NeurIPS 2018 (with error feedback: write
`topk+error-feedback`); Aji and Heafield, EMNLP 2017. k = max(1, ⌈density · n⌉) of the n elements
of a message; values travel as float32 with 32-bit positions, gathered from all ranks and summed:
8·k bytes a rank, so the volume grows with the number of ranks. Contraction:
‖a − topk(a)‖² ≤ (1 − k/n)‖a‖².

Differs from the papers: k is chosen a message, not a layer or the model; with unfused packing
that is a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State


@dataclass(frozen=True, slots=True)
class TopK:
    card: ClassVar[Card] = Card(
        name="topk",
        slot=Slot.COMPRESSION,
        summary="the k largest elements of each message, gathered",
        paper="Stich et al., Sparsified SGD with Memory, NeurIPS 2018",
    )
    lossy: ClassVar[bool] = True
    density: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.density <= 1.0:
            raise ValueError(f"density is {self.density}; use a share above 0 and up to 1, e.g. 0.01")

    @property
    def scope(self) -> Scope:
        return Scope.MESSAGE

    @property
    def how(self) -> How:
        return How.CONCAT

    def init(self, name: str, parameter: Tensor) -> State:
        return {}

    def num_kept(self, numel: int) -> int:
        return max(1, math.ceil(self.density * numel))

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        positions = torch.topk(grad.abs(), self.num_kept(grad.numel()), sorted=False).indices
        values = grad[positions]
        gathered = yield Aggregate((positions.to(torch.int32), values), How.CONCAT, "gradient", equal_sizes=True)
        total = torch.zeros_like(grad)
        for part_positions, part_values in gathered.parts:
            total.index_add_(0, part_positions.long(), part_values)
        contributed = torch.zeros_like(grad).index_copy_(0, positions, values) if ctx.wants_contribution else None
        return Reduced(total, contributed)

    def wire_bytes(self, numel: int) -> float:
        return 8.0 * self.num_kept(numel)
