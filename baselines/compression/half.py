"""Half precision on the wire: cast, sum in half precision, cast back.

Source: Horovod's `Compression.fp16` and torch's `fp16_compress_hook` do the same. `dtype` is
float16 (10 bits of mantissa, overflows at 65,504) or bfloat16 (7 bits, float32's range). The
gradient was divided by the number of ranks before, which keeps the sum in range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


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
        short = grad.to(DTYPES[self.dtype])
        contributed = short.to(grad.dtype) if ctx.wants_contribution else None
        total = yield Aggregate((short,), How.SUM, "gradient")
        return Reduced(total.parts[0][0].to(grad.dtype), contributed)

    def wire_bytes(self, numel: int, world: int) -> float:
        return 2.0 * numel
