"""Gradient dropping: what does not reach a threshold, estimated on a sample, is not sent.

Paper: Aji and Heafield, Sparse Communication for Distributed Gradient Descent, EMNLP 2017 (with error feedback: write
`aji-heafield+error-feedback`). The threshold is the magnitude |x| that a share `density` of a random sample of the
elements reaches; elements with |x| at or above it travel, 99 % are dropped. The paper finds a sample of 0.1 % enough,
and knows one threshold for all (with layer normalisation) or one a layer: `per="message"` takes one a message, with
single-bucket one for all, `per="tensor"` one a tensor.

The number of elements sent varies with the values, so sizes travel first (8 bytes per rank); each element takes 4 bytes
and 1, 2 or 4 for its position. Where many elements have the same magnitude, all or none of them are sent. One element
at least is sent, be it a zero.

Differs from the paper: codes are gathered and summed, where the paper pushes them to sharded servers and pulls sparse
differences. A sample has at least 64 elements and at least enough that 10 of them reach the threshold. Not
verified against the paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Context, Scope, Slot
from baselines.codec import Gathered
from baselines.sparsity import (
    add_sparse_code,
    blocks,
    check_share,
    chosen_bits,
    code_bytes,
    sparse_code,
    standing_out,
)

SCOPES = {"message": Scope.MESSAGE, "tensor": Scope.TENSOR}


@dataclass(frozen=True, slots=True)
class AjiHeafield(Gathered):
    card: ClassVar[Card] = Card(
        name="aji-heafield",
        slot=Slot.COMPRESSION,
        summary="elements above a threshold estimated on a sample, gathered",
        paper="Aji and Heafield, EMNLP 2017",
    )
    lossy: ClassVar[bool] = True
    density: float = 0.01
    sample: float = 0.001
    per: str = "message"

    def __post_init__(self) -> None:
        check_share("density", self.density)
        check_share("sample", self.sample)
        if self.per not in SCOPES:
            raise ValueError(f"per is {self.per!r}; use one of {', '.join(SCOPES)}")

    @property
    def scope(self) -> Scope:
        """What the threshold is taken of: a message, or each tensor of it."""
        return SCOPES[self.per]

    @property
    def equal_sizes(self) -> bool:
        """False: how many elements stand out depends on the values."""
        return False

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """Positions and values [k] of the elements at or above the threshold, at least one."""
        found = [
            standing_out(block, self.density, self.sample, ctx.generator) + start
            for start, block in blocks(values, ctx, self.per)
        ]
        positions = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
        if not positions.numel() and values.numel():
            positions = torch.zeros(1, dtype=torch.int64, device=values.device)  # no code is empty: that is no answer
        return sparse_code(values, positions)

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add each value at its position of `total` [numel]."""
        add_sparse_code(data, total)

    @property
    def code_bits(self) -> float:
        """Expected bits per element."""
        return chosen_bits(self.density)

    def wire_bytes(self, numel: int, world: int) -> float:
        """Expected bytes: `density` is met on average alone."""
        return code_bytes(numel, self.density)
