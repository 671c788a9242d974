"""The code s·sign(a) of 1-bit Adam and EF-signSGD: float32 scales, then one bit per element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Context, Message
from baselines.codec import joined, split
from baselines.kernels import signs

ORDERS = {"l2": 2, "l1": 1}


@dataclass(frozen=True, slots=True)
class ScaledSigns:
    """s = ‖a‖/n^(1/`order`) for each segment's elements, or for so many as `block` (0: all) at most; sign(0) = 1.

    ⌈n/8⌉ + 4 per scale bytes for a message of n elements.
    """

    order: int
    block: int
    equal_sizes: ClassVar[bool] = True

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """`values` [numel], float32, as bytes."""
        sizes = self._block_sizes(ctx.message)
        norms = [
            torch.linalg.vector_norm(part, self.order) / part.numel() ** (1 / self.order)
            for part in values.split(sizes)
        ]
        bits, _ = signs.encode(values, [values.numel()] if sizes else [])
        return joined(torch.stack(norms) if norms else values, bits)

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add what `data` stands for to `total` [numel]. Raises: ValueError if it is of another length."""
        sizes = self._block_sizes(ctx.message)
        scales, bits = split(data, (torch.float32, len(sizes)), (torch.uint8, (total.numel() + 7) // 8))
        signs.add_decoded(total, bits, torch.stack([-scales, scales], dim=1).view(-1), sizes)

    def _block_sizes(self, message: Message) -> list[int]:
        longest = self.block or max(1, *(s.numel for s in message.segments), 1)
        return [min(longest, s.numel - start) for s in message.segments for start in range(0, s.numel, longest)]
