"""No communication: every rank trains alone. The ideal line, and the compute cost of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from harness.systems.api import PlainSession, Seat, Session, SystemCard


@dataclass(frozen=True, slots=True)
class NoCommunication:
    card: ClassVar[SystemCard] = SystemCard(
        name="local",
        summary="every rank trains alone: the ideal line without communication",
        source="the same loop without exchange",
    )

    def why_unavailable(self) -> str | None:
        return None

    def prepare(self, model: nn.Module, seat: Seat) -> Session:
        return PlainSession(model, seat.strategy.optimizer.build(model.parameters()), clip_norm=seat.clip_norm)
