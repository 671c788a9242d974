"""Untuned: settings stay as they are written. The null of tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Knob, Slot, Tried


@dataclass(frozen=True, slots=True)
class Untuned:
    card: ClassVar[Card] = Card(name="untuned", slot=Slot.TUNING, summary="settings as written", paper="textbook")
    num_trials: ClassVar[int] = 0
    num_steps: ClassVar[int] = 0

    def propose(self, knobs: Mapping[str, Knob], tried: Sequence[Tried]) -> Mapping[str, float]:
        """Nothing to change."""
        return {}
