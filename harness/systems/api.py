"""What the training loop drives: our engine, or another system run as itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from baselines.strategy import Strategy
from fabric.api import Host
from harness.link_turns import LinkTurns
from harness.pacing import Pacing
from harness.trace import Recorder
from harness.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCard:
    """A system's entry in the catalogue."""

    name: str
    summary: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank sits: the default process group is up, and this is what else it may know."""

    rank: int
    world: int
    host: Host
    seed: int
    strategy: Strategy
    link: LinkTurns | None = None
    pacing: Pacing | None = None
    recorder: Recorder = field(default_factory=Recorder)


class Session(Protocol):
    """One rank's training under a system. The loop calls, in this order, every step:
    wait → update → forward through `model` → backward; and `finish` at the end."""

    model: nn.Module
    separates_waiting: ClassVar[bool]
    """Whether `wait` is where the loop waits for messages; false if backward itself waits."""

    def wait(self) -> None:
        """Block until the gradients of the previous step are reduced (nothing at first)."""

    def update(self) -> None:
        """Apply the previous step's gradients, if any, and clear them."""

    def backward(self, loss: Tensor) -> None:
        """Backward; gradients go on their way as the system sees fit."""

    def finish(self) -> None:
        """Apply what is left, so that the weights are those after the last step."""

    def close(self) -> None:
        """Free connections and threads."""

    @property
    def traffic(self) -> Traffic | None:
        """What was sent, where the system lets us count."""

    def mute(self, muted: bool) -> None:
        """While muted, backward communicates nothing."""

    def exchange_once(self) -> None:
        """Reduce gradients of the usual sizes with no computation beside."""


class System(Protocol):
    """A way to train data-parallel; a frozen dataclass whose fields are its settings."""

    card: ClassVar[SystemCard]

    def why_unavailable(self) -> str | None:
        """The reason why this machine cannot run it and what to do, or None."""

    def prepare(self, model: nn.Module, seat: Seat) -> Session:
        """Wrap `model` on this rank; the optimizer is the one in `seat.strategy`."""


class PlainSession:
    """A session whose update is one optimizer step over the whole model, due after each backward."""

    separates_waiting: ClassVar[bool] = True

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self._optimizer = optimizer
        self._due = False

    @property
    def traffic(self) -> Traffic | None:
        return None

    def wait(self) -> None:
        """Nothing is under way after backward."""

    def update(self) -> None:
        if self._due:
            self._optimizer.step()
            self._optimizer.zero_grad()
            self._due = False

    def backward(self, loss: Tensor) -> None:
        loss.backward()
        self._due = True

    def finish(self) -> None:
        self.wait()
        self.update()

    def close(self) -> None:
        """Nothing to free."""

    def mute(self, muted: bool) -> None:
        raise ValueError("this system cannot be muted; measure costs with the system 'ours'")

    def exchange_once(self) -> None:
        raise ValueError("this system cannot communicate alone; measure costs with the system 'ours'")
