"""No compression: the gradient travels as it is. The null of the compression slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from baselines.api import NUMBERS, Aggregate, Card, Context, How, Reduced, Reduction, Scope, Slot, State


@dataclass(frozen=True, slots=True)
class Uncompressed:
    card: ClassVar[Card] = Card(
        name="uncompressed",
        slot=Slot.COMPRESSION,
        summary="float32 as it is",
        paper="textbook synchronous SGD",
        dtypes=NUMBERS,
    )
    lossy: ClassVar[bool] = False

    @property
    def scope(self) -> Scope:
        """Nothing needs to be seen whole."""
        return Scope.ELEMENT

    @property
    def how(self) -> How:
        """Gradients are summed on the way."""
        return How.SUM

    def init(self, name: str, parameter: Tensor) -> State:
        """No state."""
        return {}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """One sum of the gradient [numel], in its own memory."""
        contributed = grad.clone() if ctx.wants_contribution else None
        total = yield Aggregate((grad,), How.SUM, "gradient")
        return Reduced(total.parts[0][0], contributed)

    def wire_bytes(self, numel: int, world: int) -> float:
        """Four bytes per element."""
        return 4.0 * numel
