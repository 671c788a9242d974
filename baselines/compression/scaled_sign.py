"""Scaled sign: one bit per element and the mean magnitude of its tensor; with error feedback this is EF-signSGD.

Paper: Karimireddy, Rebjock, Stich and Jaggi, Error Feedback Fixes SignSGD, ICML 2019 (write
`scaled-sign+error-feedback`). For each tensor a of n elements

    C(a) = ‖a‖₁/n · sign(a),  sign(0) = 1

a contraction: ‖a − C(a)‖² = (1 − ‖a‖₁²/(n·‖a‖₂²))·‖a‖². ⌈n/8⌉ + 4 bytes per tensor, gathered from all ranks.

Differs from the paper: it is for one worker; here each rank's code is summed. `momentum` is the optimizer's, behind the
wire. Not verified against the paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from baselines.api import Card, Context, Scope, Slot
from baselines.codec import Gathered
from baselines.scaled_signs import ORDERS, ScaledSigns

CODE = ScaledSigns(ORDERS["l1"], 0)


@dataclass(frozen=True, slots=True)
class ScaledSign(Gathered):
    card: ClassVar[Card] = Card(
        name="scaled-sign",
        slot=Slot.COMPRESSION,
        summary="one bit per element and the mean magnitude of its tensor (EF-signSGD)",
        paper="Karimireddy et al., Error Feedback Fixes SignSGD, ICML 2019",
    )
    lossy: ClassVar[bool] = True

    @property
    def scope(self) -> Scope:
        """The mean magnitude is of a tensor."""
        return Scope.TENSOR

    @property
    def equal_sizes(self) -> bool:
        """True: a bit per element and a scale per tensor."""
        return True

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """A scale per tensor, float32, and a bit per element."""
        return CODE.encode(values, ctx)

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add ± the tensor's scale to `total` [numel]."""
        CODE.add_decoded(data, total, ctx)

    def wire_bytes(self, numel: int, world: int) -> float:
        """Of one tensor."""
        return -(-numel // 8) + 4.0
