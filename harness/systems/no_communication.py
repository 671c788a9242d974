"""No communication: every rank trains alone. The ideal line, and the compute cost of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from harness.precision import Precision
from harness.systems.api import PlainSession, RankSeat, Session, SystemCard, scaler_for


@dataclass(frozen=True, slots=True)
class NoCommunication:
    card: ClassVar[SystemCard] = SystemCard(
        name="local",
        summary="every rank trains alone: the ideal line without communication",
        source="the same loop without exchange",
    )
    precisions: ClassVar[frozenset[Precision]] = frozenset(Precision)

    def why_unavailable(self) -> str | None:
        """It runs everywhere."""
        return None

    def why_unpaced(self, *, among_virtual: bool) -> str | None:
        """It sends nothing."""
        return None

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """The plain session on the model as it is."""
        optimizer = seat.strategy.optimizer.build(model.named_parameters())
        return PlainSession(model, optimizer, clip_norm=seat.clip_norm, scaler=scaler_for(model, seat.precision))
