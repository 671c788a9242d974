"""TernGrad: every element travels as −1, 0 or +1 times one scale per tensor, and is right on average.

Paper: Wen et al., TernGrad, NeurIPS 2017. For each tensor g with scale s, element i is sent as s·sgn(gᵢ) with
probability min(1, |gᵢ|/s), else as 0. With s = max|g| the mean of what is sent is g. Gradient clipping (section 5)
makes s = min(max|g|, c·σ), c = 2.5: a smaller scale and so less noise, at the cost of the clipped tails. `clip=0.0`
does not clip. ⌈n/4⌉ bytes and 4 a tensor, gathered from all ranks.

A tensor that holds a NaN or an infinity becomes NaN. Differs from the paper: σ is taken about zero, so that a tensor of
one element is not clipped to nothing; codes are gathered, each rank with its own scale, where the paper shares one
scale and sums on a parameter server; the last layer is not left out. Not verified against the paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Context, Scope, Slot
from baselines.codec import Gathered, joined, split
from baselines.kernels import levels

BITS = 2  # levels −1, 0 and 1


@dataclass(frozen=True, slots=True)
class TernGrad(Gathered):
    card: ClassVar[Card] = Card(
        name="terngrad",
        slot=Slot.COMPRESSION,
        summary="−1, 0 or +1 times one scale per tensor, unbiased, 2 bits per element",
        paper="Wen et al., TernGrad, NeurIPS 2017",
    )
    lossy: ClassVar[bool] = True
    clip: float = 2.5

    def __post_init__(self) -> None:
        if self.clip < 0.0:
            raise ValueError(f"clip is {self.clip}; use a number of standard deviations, e.g. 2.5, or 0 for none")

    @property
    def scope(self) -> Scope:
        """The scale is of a tensor."""
        return Scope.TENSOR

    @property
    def equal_sizes(self) -> bool:
        """True: two bits per element and a scale per tensor."""
        return True

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """A scale per tensor, float32, and two bits per element."""
        scales, signs = [], torch.empty(values.numel(), dtype=torch.int8, device=values.device)
        for part, into in zip(values.split(_sizes(ctx)), signs.split(_sizes(ctx)), strict=True):
            scales.append(scale := self._scale(part))
            draws = torch.rand(part.numel(), generator=ctx.generator).to(part.device)
            into.copy_(part.sign().mul_(draws.mul_(scale) < part.abs()).nan_to_num_(nan=0.0))
        return joined(torch.stack(scales) if scales else values[:0], levels.pack(signs, BITS))

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add −1, 0 or 1 times the tensor's scale to `total` [numel]."""
        sizes, numel = _sizes(ctx), total.numel()
        scales, codes = split(data, (torch.float32, len(sizes)), (torch.uint8, -(-numel * BITS // 8)))
        signs = levels.unpack(codes, BITS, numel)
        for part, own, scale in zip(total.split(sizes), signs.split(sizes), scales, strict=True):
            part.add_(own * scale)

    def _scale(self, part: Tensor) -> Tensor:
        """s, float32 []; NaN where the tensor is not finite."""
        largest = part.abs().amax()
        spread = torch.linalg.vector_norm(part) * (self.clip / part.numel() ** 0.5)
        scale = torch.minimum(largest, spread) if self.clip else largest
        return torch.where(largest.isfinite(), scale, torch.nan)

    def wire_bytes(self, numel: int, world: int) -> float:
        """Of one tensor."""
        return 4.0 + -(-numel // 4)


def _sizes(ctx: Context) -> list[int]:
    """How many elements each tensor has that has any."""
    return [segment.numel for segment in ctx.message.segments if segment.numel]
