"""Half precision on the wire: cast, sum in half precision, cast back.

Source: Horovod's `Compression.fp16` and torch's `fp16_compress_hook` do the same. `dtype` is
float16 (10 bits of mantissa, overflows at 65,504) or bfloat16 (7 bits, float32's range). The
gradient was divided by the number of ranks before, which keeps the sum in range.

On the CPU the short numbers stand in the gradient's own memory, cast in place: touching
fresh memory of half the size takes several times as long as the cast itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
FIRST = 1 << 16  # elements of the first stretch, which is cast through memory of its own


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
        """Each element is rounded by itself."""
        return Scope.ELEMENT

    @property
    def how(self) -> How:
        """Halves are summed on the way."""
        return How.SUM

    def init(self, name: str, parameter: Tensor) -> State:
        """No state."""
        return {}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Cast, sum in half precision, cast back into the gradient's own memory."""
        short = _shortened(grad, DTYPES[self.dtype])
        contributed = short.to(grad.dtype, copy=True) if ctx.wants_contribution else None  # the sum overwrites `short`
        total = yield Aggregate((short,), How.SUM, "gradient")
        return Reduced(_widened(total.parts[0][0], grad), contributed)

    @property
    def code_bits(self) -> float:
        """Bits per element."""
        return 16.0

    def wire_bytes(self, numel: int, world: int) -> float:
        """Two bytes per element."""
        return 2.0 * numel


def _shortened(grad: Tensor, dtype: torch.dtype) -> Tensor:
    """`grad` [n] in `dtype` [n]; in the first half of its own memory where that is float32 on the CPU."""
    if grad.device.type != "cpu" or grad.dtype != torch.float32 or not grad.is_contiguous():
        return grad.to(dtype)
    short = grad.view(dtype)[: grad.numel()]
    for start, stop in _stretches(grad.numel()):
        short[start:stop] = grad[start:stop] if start else grad[:stop].to(dtype)
    return short


def _widened(short: Tensor, grad: Tensor) -> Tensor:
    """`short` [n] in `grad` [n], from the end on where they share memory."""
    if short.data_ptr() != grad.data_ptr():
        return grad.copy_(short)
    for start, stop in reversed(_stretches(grad.numel())):
        grad[start:stop] = short[start:stop] if start else short[:stop].clone()
    return grad


def _stretches(numel: int) -> list[tuple[int, int]]:
    """Each as long as all before it: so only the first one's short numbers lie where its long ones are."""
    ends = [0]
    while ends[-1] < numel:
        ends.append(min(numel, max(FIRST, 2 * ends[-1])))
    return list(pairwise(ends))
