"""Error feedback: what compression lost in one step is added to the next gradient.

Paper: Seide et al., 1-bit SGD, Interspeech 2014; Karimireddy et al., ICML 2019. With residual e:
a = g + e; send C(a); e ← a − C(a), where C(a) is this rank's part as it *really* entered the
sum, an outer rounding included. Conservation: Σ_t C(a_t) + e_T = Σ_t g_t on every rank.

A residual that is not finite, which one infinite gradient is enough for, is given up in the next step and logged.

The residual is not scaled by the learning rate. It is kept by parameter name, so that it
survives another packing and a checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import (
    Card,
    Compressor,
    Context,
    How,
    KeepsResidual,
    Reduced,
    Reduction,
    Scope,
    Slot,
    State,
    Votes,
)
from baselines.residuals import absorb, parts_of


@dataclass(frozen=True, slots=True)
class ErrorFeedback:
    inner: Compressor
    card: ClassVar[Card] = Card(
        name="error-feedback",
        slot=Slot.COMPRESSION,
        summary="adds what was lost to the next gradient",
        paper="Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019",
        wraps=True,
    )
    lossy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.inner, ErrorFeedback):
            raise ValueError("error-feedback is named twice; one residual keeps all that is lost")
        if isinstance(self.inner, KeepsResidual):
            raise ValueError(
                f"error-feedback around {self.inner.card.name}: it keeps a residual of its own, and two would count "
                "what is lost twice; leave error-feedback out"
            )
        if isinstance(self.inner, Votes):
            raise ValueError(
                f"error-feedback around {self.inner.card.name}: what a vote leaves of one rank's gradient cannot be "
                "told; use scaled-sign+error-feedback"
            )
        if not self.inner.lossy:
            raise ValueError(
                f"error-feedback around {self.inner.card.name}: nothing is lost, so nothing can be fed back"
            )

    @property
    def scope(self) -> Scope:
        """The inner compressor's."""
        return self.inner.scope

    @property
    def how(self) -> How:
        """The inner compressor's."""
        return self.inner.how

    def init(self, name: str, parameter: Tensor) -> State:
        """A residual [numel], float32, beside the inner state."""
        residual = torch.zeros(parameter.numel(), dtype=torch.float32, device=parameter.device)
        return {"residual": residual, **self.inner.init(name, parameter)}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Add the residual, let the inner compressor reduce, keep what it did not contribute."""
        absorb(states, grad, ctx.message)  # a stands in the residual meanwhile: what is inside may overwrite grad
        reduced = yield from self.inner.reduce(grad, states, replace(ctx, wants_contribution=True))
        assert reduced.contributed is not None, "a compressor must say what it contributed when asked"
        residuals, parts = parts_of(states, "residual", reduced.contributed, ctx.message)
        torch._foreach_sub_(residuals, parts)  # at once: on a GPU a launch per parameter would cost more
        return Reduced(reduced.value, reduced.contributed)

    def wire_bytes(self, numel: int, world: int) -> float:
        """The inner compressor's: residuals do not travel."""
        return self.inner.wire_bytes(numel, world)
