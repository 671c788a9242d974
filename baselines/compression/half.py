"""Half precision on the wire: cast, sum in half precision, cast back.

Source: Horovod's `Compression.fp16` and torch's `fp16_compress_hook` do the same. `dtype` is
float16 (10 bits of mantissa, overflows at 65,504) or bfloat16 (7 bits, float32's range). The
gradient was divided by the number of ranks before, which keeps the sum in range.

On the CPU the short numbers stand in the gradient's own memory, cast a block at a time: touching fresh memory of half the
size takes several times as long as the cast itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
BLOCK = 1 << 18  # elements; a block of each type stays in the cache


@dataclass(frozen=True, slots=True)
class Half:
    card: ClassVar[Card] = Card(
        name="half",
        slot=Slot.COMPRESSION,
        summary="float16 or bfloat16 on the wire",
        paper="Sergeev and Del Balso, Horovod, arXiv 1802.05799; Micikevicius et al., ICLR 2018",
    )
    lossy: ClassVar[bool] = True
    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; use one of {', '.join(DTYPES)}")

    @property
    def scope(self) -> Scope:
        return Scope.ELEMENT

    @property
    def how(self) -> How:
        return How.SUM

    def init(self, name: str, parameter: Tensor) -> State:
        return {}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        short = _shortened(grad, DTYPES[self.dtype])
        contributed = short.to(grad.dtype) if ctx.wants_contribution else None
        total = yield Aggregate((short,), How.SUM, "gradient")
        return Reduced(_widened(total.parts[0][0], grad), contributed)

    def wire_bytes(self, numel: int, world: int) -> float:
        return 2.0 * numel


def _shortened(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """`grad` [n] in `dtype` [n]; in the first half of its own memory where that is float32 on the CPU."""
    if grad.device.type != "cpu" or grad.dtype != torch.float32 or not grad.is_contiguous():
        return grad.to(dtype)
    short = grad.view(dtype)[: grad.numel()]
    block = torch.empty(min(BLOCK, grad.numel()), dtype=dtype)
    for own, into in zip(grad.split(BLOCK), short.split(BLOCK), strict=True):
        into.copy_(block[: own.numel()].copy_(own))  # never beyond what has been read
    return short


def _widened(short: Tensor, grad: Tensor) -> Tensor:
    """`short` [n] in `grad` [n], from the last block on where they share memory."""
    if short.data_ptr() != grad.data_ptr():
        return grad.copy_(short)
    block = torch.empty(min(BLOCK, grad.numel()), dtype=short.dtype)
    for own, source in zip(reversed(grad.split(BLOCK)), reversed(short.split(BLOCK)), strict=True):
        own.copy_(block[: own.numel()].copy_(source))
    return grad
