"""Ranks as threads of one process: a room that they share, and the loop of one of them."""

from __future__ import annotations

import threading

from tiny_models import loss_at
from torch import nn

from baselines.api import Primitive
from baselines.strategy import Strategy
from harness.engine.engine import Engine
from harness.engine.shards import Adopt
from harness.engine.transport import Done
from harness.lockstep.collectives import Room
from harness.trace import Recorder

NUM_STEPS = 4


class SharedRoom(Room):
    """A room that communication threads enter one at a time."""

    def __init__(self, world: int) -> None:
        super().__init__(world)
        self._lock = threading.RLock()

    def ask(self, rank: int, primitive: Primitive, lane: int, done: Done) -> None:
        with self._lock:
            super().ask(rank, primitive, lane, done)


def train_with_engine(model: nn.Module, strategy: Strategy, room: SharedRoom, rank: int) -> Engine:
    """One rank's loop as worker or as server, with the update after all messages; returns its engine, closed."""
    engine = Engine(model, strategy, room.seat(rank), recorder=Recorder(), seed=7)
    optimizer = (Adopt() if strategy.updates_on_servers else strategy.optimizer).build(model.parameters())
    for step in range(NUM_STEPS):
        if rank >= strategy.num_workers(room.world):
            engine.exchange_once()
            continue
        engine.begin_step()
        loss_at(step)(rank, model).backward()
        engine.end_backward()
        engine.wait()
        optimizer.step()
        optimizer.zero_grad()
    engine.close()
    return engine
