"""What the training loop drives: our engine, or another system run as itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from baselines.api import OptimizerSpec
from baselines.strategy import Strategy
from fabric.api import Host
from harness.engine.layout import TrainedParameters
from harness.engine.link_turns import LinkTurns
from harness.engine.reduction import Reduces
from harness.engine.traffic import Traffic
from harness.precision import FIRST_SCALE, LossScale, Precision
from harness.trace import Recorder
from results.record import Adapted


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCard:
    """A system's entry in the catalogue."""

    name: str
    summary: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeat:
    """Where a rank sits: the default process group is up, and this is what else it may know.

    A step is `accumulate` micro-batches; `clip_norm` is for the averaged gradient; `precision` is what the workload's
    layers compute in, and says whether to scale the loss; `scratch` is a folder that is
    removed after the trial. `paused` is to be called where a forward had to wait for messages. `compressor` does what
    the strategy's does and is charged for in replay, where tensors are `size_scale` times smaller than the network's.
    """

    rank: int
    world: int
    host: Host
    seed: int
    strategy: Strategy
    link: LinkTurns | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    precision: Precision = Precision.FLOAT32
    scratch: Path | None = None
    paused: Callable[[], None] = lambda: None
    recorder: Recorder = field(default_factory=Recorder)
    compressor: Reduces | None = None
    size_scale: int = 1


class Session(Protocol):
    """One rank's training under a system. The loop calls, in this order, every step:
    wait → update → (begin_micro_batch → forward through `model` → backward) × micro-batches; and `finish` at the end.
    Losses come divided by the number of micro-batches, so gradients add up to those of one large batch."""

    model: nn.Module
    separates_waiting: bool
    """Whether `wait` is where the loop waits for messages; false if forward, backward or the update waits too."""

    def wait(self) -> None:
        """Block until the gradients of the previous step are reduced (nothing at first)."""

    def update(self) -> None:
        """Apply the previous step's gradients, if any, and clear them."""

    def begin_micro_batch(self, *, last: bool) -> None:
        """Before a forward: whether its backward is the step's last, whose gradients go on their way."""

    def backward(self, loss: Tensor) -> None:
        """Backward; in the last micro-batch, which is the default, gradients go on their way as the system sees fit."""

    def finish(self) -> None:
        """Apply what is left, so that the weights are those after the last step."""

    def close(self) -> None:
        """Free connections and threads."""

    @property
    def traffic(self) -> Traffic | None:
        """What was sent, where the system lets us count."""

    @property
    def notes(self) -> Mapping[str, str]:
        """What the system says of itself for the record, e.g. what its own tuner chose."""

    @property
    def adapted(self) -> tuple[Adapted, ...]:
        """How our engine changed its strategy while it trained."""

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scale of the step to come and how many steps were skipped, where the loss is scaled."""

    def mute(self, muted: bool) -> None:
        """While muted, backward communicates nothing."""

    def exchange_once(self) -> None:
        """Reduce gradients of the usual sizes with no computation beside."""


@runtime_checkable
class Compresses(Protocol):
    """A system that may itself send less than the float32 gradients."""

    @property
    def compresses(self) -> bool:
        """Whether these settings do."""


class System(Protocol):
    """A way to train data-parallel; a frozen dataclass whose fields are its settings."""

    card: ClassVar[SystemCard]

    def why_unavailable(self) -> str | None:
        """The reason why this machine cannot run it and what to do, or None."""

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """Wrap `model` on this rank; the optimizer is the one in `seat.strategy`."""


@runtime_checkable
class Preloads(Protocol):
    """A system whose import takes seconds."""

    def preload(self) -> None:
        """Import it in the process that ranks are forked from; starts no thread."""


@runtime_checkable
class Warms(Protocol):
    """A system that changes itself in its first steps."""

    @property
    def num_warmup(self) -> int:
        """Steps until it is what it will be; they must not be measured."""
        ...


@runtime_checkable
class RunsPaced(Protocol):
    """A system that sends by torch.distributed alone, so that the backend `paced` carries it."""

    def why_unpaced(self, *, among_virtual: bool) -> str | None:
        """The reason why these settings cannot run there, with virtual peers or with real ones, or None."""
        ...


@runtime_checkable
class LimitsOptimizers(Protocol):
    """A system that does not step every optimizer as it is."""

    def why_not_stepped(self, optimizer: OptimizerSpec) -> str | None:
        """The reason why these settings would not do what `optimizer` says and the remedy, or None."""
        ...


@runtime_checkable
class HasPrecisions(Protocol):
    """A system that trains in 16 bits too; any other computes in float32 alone."""

    precisions: ClassVar[frozenset[Precision]]


class PlainSession:
    """A session whose update is one optimizer step over the whole model, due after each step's last backward.

    With `scaler` it scales the loss; its decision to skip a step is common where gradients are.
    """

    separates_waiting = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.model = model
        self._scaler, self._num_skipped = scaler, 0
        self._optimizer = optimizer
        self._trained = TrainedParameters(model)
        self._clip_norm = clip_norm
        self._due = False
        self._last = True

    @property
    def traffic(self) -> Traffic | None:
        """Not known: another system sends by itself."""
        return None

    @property
    def notes(self) -> Mapping[str, str]:
        """Nothing to say."""
        return {}

    @property
    def adapted(self) -> tuple[Adapted, ...]:
        """Nothing changes while it trains."""
        return ()

    @property
    def loss_scale(self) -> LossScale | None:
        """torch's scaler's present S, if there is one; clean steps are the scaler's own business."""
        if self._scaler is None:
            return None
        return LossScale(self._scaler.get_scale(), num_skipped=self._num_skipped)

    def wait(self) -> None:
        """Nothing is under way after backward."""

    def update(self) -> None:
        """Unscale, clip, step, clear; nothing if no backward has come since the last update."""
        if self._due:
            if self._scaler is not None:
                self._scaler.unscale_(self._optimizer)
            if self._clip_norm is not None:  # every rank has the same gradients, so it finds the same norm
                nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
            if self._scaler is None:
                self._optimizer.step()
            else:
                self._step_if_finite(self._scaler)
            self._clear()
            self._due = False

    def _clear(self) -> None:
        self._optimizer.zero_grad()

    def _step_if_finite(self, scaler: torch.amp.GradScaler) -> None:
        before = scaler.get_scale()
        scaler.step(self._optimizer)
        scaler.update()
        # torch's scaler tells of a skipped step by nothing but a smaller scale.
        self._num_skipped += scaler.get_scale() < before

    def begin_micro_batch(self, *, last: bool) -> None:
        """Note whether the backward to come is the step's last."""
        self._last = last

    def backward(self, loss: Tensor) -> None:
        """Backward of the loss, scaled where there is a scaler; the update is due after the step's last one.

        Raises: ParametersChangedError if other parameters are trained than when training began.
        """
        self._trained.check()
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        self._due = self._last

    def finish(self) -> None:
        """Wait for the last step and apply it."""
        self.wait()
        self.update()

    def close(self) -> None:
        """Nothing to free."""

    def mute(self, muted: bool) -> None:
        """Raises: ValueError, since another system's hooks cannot be told to keep still."""
        raise ValueError("this system cannot be muted; measure costs with the system 'ours' or 'horovod'")

    def exchange_once(self) -> None:
        """Raises: ValueError, since another system sends inside backward alone."""
        raise ValueError("this system cannot communicate alone; measure costs with the system 'ours' or 'horovod'")


def scaler_for(model: nn.Module, precision: Precision) -> torch.amp.GradScaler | None:
    """torch's own loss scaler, where the precision wants one."""
    device = next(model.parameters()).device.type
    return torch.amp.GradScaler(device, init_scale=FIRST_SCALE) if precision.scales_loss else None
