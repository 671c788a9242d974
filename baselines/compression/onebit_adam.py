"""1-bit Adam: after a warm-up with Adam, momenta travel as signs, both ways, with residuals on workers and servers.

Paper: Tang et al., 1-bit Adam, ICML 2021. Write `onebit-adam+frozen-adam`: this is the half that communicates, the
optimizer `frozen-adam` the half that steps, with `freeze_after` equal to `warmup_steps` and the same `beta1`. In steps
0 … `warmup_steps`−1 mean gradients travel in float32 and m̄ ← β₁·m̄ + (1−β₁)·g is kept here too. Then, over W workers,

    worker i:  a ← (β₁·m̄ + (1−β₁)·g_i)/W + e,  sends C(a),  e ← a − C(a)
    server:    ā ← Σ C(a) + ē,                  sends C(ā),  ē ← ā − C(ā)
    all:       m̄' ← C(ā),                       take (m̄' − β₁·m̄)/(1−β₁) for the gradient

Adam's own β₁·m + (1−β₁)·gradient is then m̄' (to float32 rounding, of which each step forgets 1−β₁), so optimizer and
loop need not know. Whoever clips that gradient changes the momentum.

C(a) = s·sign(a), sign(0) = 1, with s = ‖a‖₂/√n (`scale="l2"`): the ratio of the magnitudes of a and its signs in
the paper, as DeepSpeed computes it. It makes C no contraction where a few elements are much larger than the rest;
the mean of |a| (`scale="l1"`) always does. One s for each parameter's rows on a server (`block` > 0: for so many
elements at most). Bytes: ⌈n/8⌉ + 4 per scale. Bits say + or −, never 0: an element whose gradient is always 0 moves.

Differs from the paper: the momentum's bias correction goes on (`frozen-adam`), as Adam has it; DeepSpeed has none. A
worker's s is for one server's rows of a parameter, DeepSpeed's for a whole one. `warmup_steps` defaults to 100, for
some hundreds of steps in all; the paper takes 15–20 % of them. Residuals survive a checkpoint; DeepSpeed resets them.
What is not finite in momentum or residuals is given up in the next step and logged. Steps count those that mixed
precision skips, `frozen-adam` does not: skip none. Not verified against the paper's text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import (
    Aggregate,
    Card,
    Context,
    How,
    Message,
    OptimizerSpec,
    Reduced,
    Reduction,
    Scope,
    Slot,
    State,
)
from baselines.residuals import absorb, report
from baselines.scaled_signs import ORDERS, ScaledSigns
from baselines.squeezing import squeezed


@dataclass(frozen=True, slots=True)
class OnebitAdam:
    card: ClassVar[Card] = Card(
        name="onebit-adam",
        slot=Slot.COMPRESSION,
        summary="signs of momenta to servers and back, after a warm-up",
        paper="Tang et al., 1-bit Adam, ICML 2021",
    )
    lossy: ClassVar[bool] = True
    keeps_residual: ClassVar[bool] = True
    warmup_steps: int = 100
    beta1: float = 0.9
    scale: str = "l2"
    block: int = 0

    def __post_init__(self) -> None:
        if self.warmup_steps < 1:
            raise ValueError(f"warmup_steps is {self.warmup_steps}; the second moment needs at least 1 step")
        if not 0 <= self.beta1 < 1:
            raise ValueError(f"beta1 is {self.beta1}; use 0 or more and less than 1")
        if self.scale not in ORDERS:
            raise ValueError(f"scale is {self.scale!r}; use one of {', '.join(ORDERS)}")
        if self.block < 0:
            raise ValueError(f"block is {self.block}; use a number of elements, or 0 for one scale per parameter")

    @property
    def dense_steps(self) -> int:
        """The warm-up: gradients travel in float32."""
        return self.warmup_steps

    @property
    def scope(self) -> Scope:
        """A message is shared out over the servers as a whole."""
        return Scope.MESSAGE

    @property
    def how(self) -> How:
        """Each server gets its rows of every worker's momentum."""
        return How.SCATTER

    def fits(self, optimizer: OptimizerSpec) -> bool:
        """Whether `optimizer` is the other half of 1-bit Adam, with the same settings."""
        own = [getattr(optimizer, field, None) for field in ("freeze_after", "beta1")]
        return optimizer.card.name == "frozen-adam" and own == [self.warmup_steps, self.beta1]

    def init(self, name: str, parameter: Tensor) -> State:
        """Momentum and the residuals of worker and server [numel], float32."""
        keys = ("momentum", "residual", "server_residual")
        return {key: torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device) for key in keys}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Mean gradients while warming up; then momenta both ways as signs, and the gradient that Adam turns into
        them."""
        if ctx.step < self.warmup_steps:
            contributed = grad.clone() if ctx.wants_contribution else None
            ((mean,),) = (yield Aggregate((grad,), How.SUM, "gradient")).parts
            for momentum, _, part in _parts(states, mean, ctx.message):
                momentum.lerp_(part, 1 - self.beta1)
            return Reduced(mean, contributed)
        share = self.beta1 / (ctx.num_workers or ctx.world)
        own = grad.mul_(1 - self.beta1)
        for momentum, _, part in _parts(states, own, ctx.message):
            part.add_(momentum, alpha=share)
        absorb(states, own, ctx.message)
        codec = ScaledSigns(ORDERS[self.scale], self.block)
        servers = {s.name: states[s.name]["server_residual"] for s in ctx.message.segments}
        squeezing = yield from squeezed(codec, own, servers, replace(ctx, wants_contribution=True))
        sent, value = squeezing.contributed, squeezing.value
        assert sent is not None
        for momentum, residual, part in _parts(states, sent, ctx.message):
            residual.sub_(part)
            part.sub_(momentum, alpha=share).div_(1 - self.beta1)
        for momentum, _, part in _parts(states, value, ctx.message):
            fresh = part.clone()
            part.sub_(momentum, alpha=self.beta1).div_(1 - self.beta1)
            if math.isfinite(float(fresh.sum())):
                momentum.copy_(fresh)
            else:
                momentum.zero_()
                report(fresh.numel(), ctx.message)
        return Reduced(value, sent if ctx.wants_contribution else None)

    @property
    def code_bits(self) -> float:
        """Bits per element after the warm-up, scales apart."""
        return 1.0

    def wire_bytes(self, numel: int, world: int) -> float:
        """After the warm-up, of one parameter whose servers are all ranks: signs and scales to them, and one reply."""
        return numel / 8 * (1 + 1 / world) + 4.0 * (world + 1)


def _parts(states: Mapping[str, State], flat: Tensor, message: Message) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each segment's momentum and residual beside its part of the flat message."""
    for segment, part in zip(message.segments, flat.split([s.numel for s in message.segments]), strict=True):
        state, here = states[segment.name], slice(segment.start, segment.stop)
        yield state["momentum"][here], state["residual"][here], part
