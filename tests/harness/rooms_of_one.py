"""An engine with no other rank."""

from __future__ import annotations

from engine_threads import SharedRoom
from torch import nn

from baselines.strategy import parse_strategy
from harness.engine.engine import Engine
from harness.trace import Recorder


def engine_alone(model: nn.Module, text: str) -> Engine:
    """The engine of the only rank."""
    return Engine(model, parse_strategy(text), SharedRoom(1).seat(0), recorder=Recorder())
