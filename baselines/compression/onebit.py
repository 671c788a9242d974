"""1-bit SGD: the sign of each element, and for each block the mean of its negative and of its other elements.

Paper: Seide, Fu, Droppo, Li and Yu, 1-Bit Stochastic Gradient Descent, Interspeech 2014. Element v decodes to

    mean{u ∈ block : u ≥ 0}  if v ≥ 0,  else  mean{u ∈ block : u < 0}

so [-1, -2, 3, 5] as one block decodes to [-1.5, -1.5, 4, 4]. The threshold is 0; of all pairs of values these means
keep the block's sum and have the least squared error. ⌈n/8⌉ + 8·blocks bytes for n elements (`kernels/signs.py`). A
NaN or an infinity turns its whole block into NaN.

The error is of the size of the gradient: without error feedback it does not converge. The whole method, whose
aggregating nodes quantise again with a residual of their own after a start in full precision, is written
`onebit+double-squeeze+error-feedback+warm-up(steps=…)`; `onebit` alone is gathered from all ranks.

`per` says what a block is. "row" (default): the weights into one output, W[i] of a parameter with 2 or more dimensions;
other parameters are one block. "tensor": a parameter. "message": all of a message. A row of m elements costs 1 + 64/m
bits per element: 3×3 convolutions of few channels gain little by "row", matrices nearly all of 32.

Differs from the paper: its blocks are columns of weight matrices. We read that as the weights into one unit, for a
layer written z = Wᵀv, which is a row where torch stores W as [outputs, inputs]; CNTK's code takes columns of a matrix
stored by columns, with threshold 0 and the two means used here. No AdaGrad in between and no automatic batch size.
Not verified against the paper.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Context, Message, Scope, Segment, Slot
from baselines.codec import Gathered, joined, split
from baselines.kernels import signs


@dataclass(frozen=True, slots=True)
class OneBit(Gathered):
    card: ClassVar[Card] = Card(
        name="onebit",
        slot=Slot.COMPRESSION,
        summary="one bit per element and two means per row, tensor or message",
        paper="Seide et al., 1-Bit Stochastic Gradient Descent, Interspeech 2014",
    )
    lossy: ClassVar[bool] = True
    per: str = "row"

    def __post_init__(self) -> None:
        if self.per not in ("row", "tensor", "message"):
            raise ValueError(f"per is {self.per!r}; use 'row', 'tensor' or 'message'")

    @property
    def scope(self) -> Scope:
        """Blocks are of a tensor, or of a message."""
        return Scope.MESSAGE if self.per == "message" else Scope.TENSOR

    @property
    def equal_sizes(self) -> bool:
        """True: bits and means depend on shapes alone."""
        return True

    def block_sizes(self, message: Message) -> list[int]:
        """How many elements each block of a message has, in order; none is empty."""
        if self.per == "message":
            sizes = [message.numel]
        elif self.per == "tensor":
            sizes = [segment.numel for segment in message.segments]
        else:
            sizes = [size for segment in message.segments for size in _rows(segment)]
        return [size for size in sizes if size]

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """Two means per block, float32, and a bit per element."""
        bits, means = signs.encode(values, self.block_sizes(ctx.message))
        return joined(means, bits)

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add each element's mean to `total` [numel]."""
        sizes = self.block_sizes(ctx.message)
        means, bits = split(data, (torch.float32, 2 * len(sizes)), (torch.uint8, -(-total.numel() // 8)))
        signs.add_decoded(total, bits, means, sizes)

    @property
    def code_bits(self) -> float:
        """Bits per element, means apart."""
        return 1.0

    def wire_bytes(self, numel: int, world: int) -> float:
        """Shapes are not known here: as many rows as a square matrix has."""
        num_blocks = math.sqrt(numel) if self.per == "row" else 1
        return -(-numel // 8) + 8.0 * num_blocks


def _rows(segment: Segment) -> list[int]:
    """The sizes of a segment's rows; of one that begins or ends within a row, the parts of rows that it has."""
    width = math.prod(segment.shape[1:]) if len(segment.shape) > 1 else 0
    if not width:
        return [segment.numel]
    first = min(segment.numel, -segment.start % width)
    whole, last = divmod(segment.numel - first, width)
    return [first, *[width] * whole, last]
