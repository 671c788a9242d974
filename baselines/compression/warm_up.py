"""Warm-up: the first steps in full precision, then the compressor inside.

Paper: Seide et al., 1-bit SGD, Interspeech 2014, start in full precision, while gradients are large and change fast;
1-bit Adam (Tang et al., ICML 2021) and others do alike. In steps 0 … `steps`−1 float32 gradients are summed; from then
on messages are those of the inner compressor, whose residuals and momenta are zero until then. With local steps
exchanges are counted: with `local-steps(n=5)`, `steps=4` is 20 steps of training.

Written last, around everything else: `onebit+double-squeeze+error-feedback+warm-up(steps=100)`. Prediction takes the
bytes after the warm-up.

Differs from the paper: a number of steps (default 100, ours), where the paper gives an amount of data. Not verified
against the paper. Ramps of the density belong to the methods that have them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from baselines.api import Aggregate, Card, Compressor, Context, How, Reduced, Reduction, Scope, Slot, State


@dataclass(frozen=True, slots=True)
class WarmUp:
    inner: Compressor
    card: ClassVar[Card] = Card(
        name="warm-up",
        slot=Slot.COMPRESSION,
        summary="the first steps uncompressed",
        paper="Seide et al., 1-bit SGD, Interspeech 2014; Tang et al., 1-bit Adam, ICML 2021",
        wraps=True,
    )
    lossy: ClassVar[bool] = True
    steps: int = 100

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"steps is {self.steps}; use a number of uncompressed steps from 0 up")
        if not self.inner.lossy:
            raise ValueError(
                f"warm-up around {self.inner.card.name}: nothing is lost, so nothing waits for its start; leave it out"
            )
        if isinstance(self.inner, WarmUp):
            raise ValueError("warm-up is named twice; name it once, last")

    @property
    def dense_steps(self) -> int:
        """Steps in full precision."""
        return self.steps

    @property
    def scope(self) -> Scope:
        """The inner compressor's."""
        return self.inner.scope

    @property
    def how(self) -> How:
        """The inner compressor's; in the warm-up sums."""
        return self.inner.how

    def init(self, name: str, parameter: Tensor) -> State:
        """The inner state, which stays as it is until the warm-up is over."""
        return self.inner.init(name, parameter)

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """A plain sum in the first `steps` steps, then the inner compressor."""
        if ctx.step >= self.steps:
            return (yield from self.inner.reduce(grad, states, ctx))
        contributed = grad.clone() if ctx.wants_contribution else None
        total = yield Aggregate((grad,), How.SUM, "gradient")
        return Reduced(total.parts[0][0], contributed)

    def wire_bytes(self, numel: int, world: int) -> float:
        """The inner compressor's, as after the warm-up."""
        return self.inner.wire_bytes(numel, world)
