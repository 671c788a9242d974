"""signSGD with majority vote, and Signum: each rank sends signs, and each element goes the way of most ranks.

Papers: Bernstein, Wang, Azizzadenesheli and Anandkumar, signSGD, ICML 2018; Bernstein, Zhao, Azizzadenesheli and
Anandkumar, signSGD with Majority Vote is Communication Efficient and Fault Tolerant, ICLR 2019. With worker i's
gradient g_i, the gradient of every element becomes −1, 0 or 1:

    signsgd:   sign(Σ_i sign(g_i))
    signum:    m_i ← β·m_i + (1 − β)·g_i;   sign(Σ_i sign(m_i))

0 is a draw. The step of each element is then the learning rate, as long as a step of Adam: use one some hundred times
smaller than for SGD. Signum brings its momentum: `signum+sgd(momentum=0.0)`. ⌈n/8⌉ bytes per rank, whatever the values.

A sign has no 0. Where a rank's value is 0 its vote is that of the parity of rank and step, so that votes of zeros are a
draw among an even number of ranks, and take turns among an odd one: unused elements stay where they are. A NaN votes
as 0 does, which is logged: of a vote nobody else would see it. An infinity has a sign.

No error feedback goes around it: what a vote leaves of a rank's own value cannot be told. `scaled-sign` is the method
that feeds back. Differs from the papers: votes are gathered from all ranks, (P − 1)·n/8 bytes, where the authors'
server sends n/8 back. Not verified against the papers' text.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State
from baselines.kernels import signs
from baselines.residuals import parts_of, report

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SignSgd:
    card: ClassVar[Card] = Card(
        name="signsgd",
        slot=Slot.COMPRESSION,
        summary="signs, and the majority's for each element",
        paper="Bernstein et al., ICML 2018 and ICLR 2019 (majority vote)",
    )
    lossy: ClassVar[bool] = True
    votes: ClassVar[bool] = True

    @property
    def scope(self) -> Scope:
        """Each element is voted on by itself."""
        return Scope.ELEMENT

    @property
    def how(self) -> How:
        """Votes of all ranks are gathered."""
        return How.CONCAT

    def init(self, name: str, parameter: Tensor) -> State:
        """No state."""
        return {}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """The majority of the ranks' signs [numel], −1, 0 or 1."""
        return _majority(grad, ctx)

    def wire_bytes(self, numel: int, world: int) -> float:
        """A bit per element."""
        return float(-(-numel // 8))


@dataclass(frozen=True, slots=True)
class Signum:
    card: ClassVar[Card] = Card(
        name="signum",
        slot=Slot.COMPRESSION,
        summary="signs of each rank's momentum, and the majority's for each element",
        paper="Bernstein et al., ICML 2018 and ICLR 2019 (majority vote)",
    )
    lossy: ClassVar[bool] = True
    votes: ClassVar[bool] = True
    momentum: float = 0.9

    def __post_init__(self) -> None:
        if not 0.0 < self.momentum < 1.0:
            raise ValueError(f"momentum is {self.momentum}; use more than 0 and less than 1, or signsgd without any")

    @property
    def scope(self) -> Scope:
        """Each element is voted on by itself."""
        return Scope.ELEMENT

    @property
    def how(self) -> How:
        """Votes of all ranks are gathered."""
        return How.CONCAT

    @property
    def applies_momentum(self) -> bool:
        """Always, before the vote."""
        return True

    def init(self, name: str, parameter: Tensor) -> State:
        """Momentum [numel], float32."""
        return {"momentum": torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Update the momentum, then the majority of its signs [numel], −1, 0 or 1."""
        for momentum, part in zip(*parts_of(states, "momentum", grad, ctx.message), strict=True):
            if not math.isfinite(float(momentum.sum())):
                report(int((~momentum.isfinite()).sum()), ctx.message)
                momentum.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            part.copy_(momentum.lerp_(part, 1 - self.momentum))
        return (yield from _majority(grad, ctx))

    def wire_bytes(self, numel: int, world: int) -> float:
        """A bit per element."""
        return float(-(-numel // 8))


def _majority(values: Tensor, ctx: Context) -> Reduction:
    """The majority's sign of each element of `values` [numel], which is overwritten."""
    blocks = [values.numel()] if values.numel() else []
    tie = 1.0 if (ctx.rank + ctx.step) % 2 else -1.0
    values.masked_fill_(values == 0, tie)
    bits, means = signs.encode(values, blocks)
    if not bool(means.isfinite().all()) and bool((undecided := values.isnan()).any()):
        first = ctx.message.segments[0].name
        log.warning("%d elements of %s and what travels with it are no number: no vote", int(undecided.sum()), first)
        bits, _ = signs.encode(values.masked_fill_(undecided, tie), blocks)
    answer = yield Aggregate((bits,), How.CONCAT, "gradient", equal_sizes=True)
    vote = torch.tensor([-1.0, 1.0] * len(blocks), device=values.device)
    total = values.zero_()
    for (part,) in answer.parts:
        signs.add_decoded(total, part, vote, blocks)
    return Reduced(total.sign_())
