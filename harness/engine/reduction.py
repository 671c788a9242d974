"""One message's way through compressor and exchange, as a generator of primitives: no I/O here.

The engine drives one such generator a message against a process group; lockstep drives P of
them together in one process.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baselines.api import (
    Context,
    Exchange,
    Payload,
    Primitive,
    Reduced,
    Reduction,
    State,
)
from harness.engine.traffic import Planned


@dataclass(frozen=True, slots=True)
class Tagged:
    """A primitive, or on the virtual clock what stands for it, and the tag under which its bytes are counted."""

    primitive: Primitive | Planned
    tag: str


MessageRun = Generator[Tagged, Payload, Reduced]


class Reduces(Protocol):
    """What a message needs of a compressor."""

    @property
    def lossy(self) -> bool:
        """Whether what comes back may differ from the mean; then `grad` is given in float32."""

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Yield what is to be combined over ranks, be sent the answers, return the mean of `grad` [numel]."""


def reduce_message(
    compressor: Reduces, exchange: Exchange, grad: Tensor, states: Mapping[str, State], ctx: Context
) -> MessageRun:
    """Combine `grad` [numel of the message] over all ranks; returns what the compressor returns.

    A lossy compressor sees float32, whatever the format of the gradients: residuals are float32, and what is added to
    them in 16 bits would be lost unseen. `value` comes back in the format of `grad`.
    """
    reduce = in_float32 if compressor.lossy and grad.dtype != torch.float32 else _as_it_is
    compression = reduce(compressor, grad, states, ctx)
    try:
        aggregate = next(compression)
        while True:
            # The exchange is told the message too: by it a parameter server knows which part is whose.
            aggregate.message = ctx.message
            exchanging = exchange.run(aggregate, ctx.rank, ctx.world)
            try:
                primitive = next(exchanging)
                while True:
                    answer = yield Tagged(primitive, aggregate.tag)
                    primitive = exchanging.send(answer)
            except StopIteration as end:
                aggregate = compression.send(end.value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _as_it_is(compressor: Reduces, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
    return compressor.reduce(grad, states, ctx)


def in_float32(compressor: Reduces, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
    """Reduce a float32 copy of `grad` [numel], into which the mean is written back; `contributed` stays float32."""
    reduced = yield from compressor.reduce(grad.float(), states, ctx)
    return Reduced(grad.copy_(reduced.value), reduced.contributed)
