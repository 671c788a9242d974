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

from baselines.api import Card, Context, How, Reduction, Scope, Slot, State
from baselines.codec import gathered, joined, split


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
        return min(numel, max(1, math.ceil(self.density * numel)))

    @property
    def equal_sizes(self) -> bool:
        return True

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        positions = torch.topk(values.abs(), self.num_kept(values.numel()), sorted=False).indices
        return joined(values[positions], positions.to(torch.int32))

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        num_kept = self.num_kept(total.numel())
        values, positions = split(data, (torch.float32, num_kept), (torch.int32, num_kept))
        total.index_add_(0, positions.long(), values)

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        return gathered(self, grad, ctx)

    def wire_bytes(self, numel: int, world: int) -> float:
        return 8.0 * self.num_kept(numel)
