"""Our engine with a strategy: the system in which baselines are compared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from baselines.api import OptimizerSpec, UpdatePoint
from harness.engine.engine import Engine
from harness.engine.local_steps import LocalSteps
from harness.engine.shards import Adopt
from harness.engine.traffic import Traffic
from harness.engine.transport import ProcessGroupTransport
from harness.precision import LossScale, Precision
from harness.systems.api import PlainSession, RankSeat, Session, SystemCard
from results.record import UNUSED, Adapted


@dataclass(frozen=True, slots=True)
class Ours:
    card: ClassVar[SystemCard] = SystemCard(
        name="ours", summary="our engine with a strategy of plug-ins", source="harness/engine/engine.py"
    )
    precisions: ClassVar[frozenset[Precision]] = frozenset(Precision)

    def why_unavailable(self) -> str | None:
        """It runs everywhere."""
        return None

    def why_unpaced(self, *, among_virtual: bool) -> str | None:
        """Every strategy sends by torch.distributed alone."""
        return None

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """An engine on the groups that its strategy needs. Raises: ValueError for scaled losses with local steps."""
        transport = ProcessGroupTransport.of(
            seat.strategy, size_scale=seat.size_scale, shares_link=seat.link is not None
        )
        scales_loss = seat.precision.scales_loss
        engine = Engine(
            model,
            seat.strategy,
            transport,
            recorder=seat.recorder,
            seed=seat.seed,
            link=seat.link,
            scales_loss=scales_loss,
            compressor=seat.compressor,
        )
        if scales_loss and seat.strategy.local_steps > 1:
            raise ValueError(f"{seat.strategy.text}: local steps are not skipped together; use bfloat16 or float32")
        optimizer = Adopt() if seat.strategy.updates_on_servers else seat.strategy.optimizer
        if seat.strategy.update_point is UpdatePoint.AT_PRE_HOOK:
            return EagerSession(model, optimizer, engine, paused=seat.paused)
        loss_scale = LossScale() if scales_loss else None
        return EngineSession(model, optimizer, engine, clip_norm=seat.clip_norm, loss_scale=loss_scale)


class EngineSession(PlainSession):
    """Update after all messages are complete.

    The engine unscales the gradients of a scaled loss; where it is muted, the loss is not scaled.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: OptimizerSpec,
        engine: Engine,
        *,
        clip_norm: float | None = None,
        loss_scale: LossScale | None = None,
    ) -> None:
        super().__init__(model, optimizer.build(model.named_parameters()), clip_norm=clip_norm)
        self._engine = engine
        self._loss_scale = loss_scale
        self._muted = False
        self._adopts = engine.strategy.updates_on_servers
        period = engine.strategy.local_steps
        self._local = LocalSteps(engine.parameters, period) if period > 1 else None

    @property
    def traffic(self) -> Traffic | None:
        """What the engine has sent so far."""
        return self._engine.traffic

    @property
    def notes(self) -> Mapping[str, str]:
        """Parameters that got no gradient on this rank in some step, and so counted as zeros there."""
        return {UNUSED: ", ".join(self._engine.unused)} if self._engine.unused else {}

    @property
    def adapted(self) -> tuple[Adapted, ...]:
        """What was bound, tried and chosen so far."""
        return self._engine.adapted

    @property
    def loss_scale(self) -> LossScale | None:
        """S of the step to come, None where the loss is not scaled."""
        return self._loss_scale

    def wait(self) -> None:
        """Block until the last step's messages have landed. Raises: EngineError."""
        if self._due:
            self._engine.wait()

    def update(self) -> None:
        """Step, or skip the step if any rank's gradients overflowed; with local steps take the mean of what was
        exchanged."""
        if self._local is not None:
            if self._due:
                self._local.adopt()
                self._due = False
            return
        if self._due and self._muted and self._adopts:  # a local gradient is no parameter
            self._optimizer.zero_grad()
            self._due = False
        if self._due and not self._muted and self._loss_scale is not None:
            self._loss_scale = self._loss_scale.after(overflow=self._engine.overflowed)
            if self._engine.overflowed:
                self._optimizer.zero_grad()
                self._due = False
        super().update()

    def begin_micro_batch(self, *, last: bool) -> None:
        """Keep the engine still in all but the last micro-batch, and always where ranks step alone."""
        super().begin_micro_batch(last=last)
        self._engine.mute(self._muted or not last or self._local is not None)

    def backward(self, loss: Tensor) -> None:
        """Backward; in the last micro-batch its gradients are messages as they become ready. Raises: EngineError."""
        if self._local is not None:
            # A local step's gradients are the rank's own and must not be sent.
            self._engine.mute(True)
            super().backward(loss)
            self._step_locally(self._local)
            return
        scale = 1.0 if self._loss_scale is None or self._muted else self._loss_scale.scale
        scaled = loss if scale == 1.0 else loss * scale
        if self._muted or not self._last:
            super().backward(scaled)
            return
        self._engine.begin_step(scale)
        super().backward(scaled)
        self._engine.end_backward()

    def _step_locally(self, local: LocalSteps) -> None:
        """The rank's own update, in its turn; after the last one of a period its differences go on their way."""
        if not self._last:
            return
        super().update()
        if not self._muted and local.count():
            self._send_differences(local)

    def _send_differences(self, local: LocalSteps) -> None:
        local.offer()
        self._engine.begin_step()
        self._engine.end_backward()
        self._due = True

    def finish(self) -> None:
        """Apply the last step; with local steps also exchange a period that was cut short, so that ranks end alike."""
        super().finish()
        if self._local is not None and self._local.num_since and not self._muted:
            self._send_differences(self._local)
            super().finish()

    def mute(self, muted: bool) -> None:
        """Keep the engine still from now on, to measure compute alone."""
        self._muted = muted
        self._engine.mute(muted)

    def exchange_once(self) -> None:
        """One step's messages without computing. Raises: EngineError."""
        self._engine.exchange_once()

    def close(self) -> None:
        """End the engine's thread, hooks and groups."""
        self._engine.close()


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Parameters that are updated together, in one call: a call takes longer than the arithmetic of a small tensor."""

    names: list[str]
    optimizer: torch.optim.Optimizer


class _Reads(TorchFunctionMode):
    """Tells `note` of every tensor that torch's functions are given."""

    def __init__(self, note: Callable[[Tensor], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        # An attribute that is no tensor, such as a dtype, says nothing of the values.
        if isinstance(found, Tensor) or getattr(func, "__name__", "") != "__get__":
            self._note_all([*args, *(kwargs or {}).values()])
        return found

    def _note_all(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, Tensor):
                self._note(value)
            elif isinstance(value, tuple | list):
                self._note_all(value)


class EagerSession(EngineSession):
    """Update at the next forward's pre-hooks: a module waits for its own parameters only.

    One optimizer per module, which for rules that look at one parameter at a time gives the same weights. A parameter
    shared by modules is updated, with those of the first that has it, before the first of them runs. Our hook is a
    module's first: others, such as those of weight normalisation, compute from the parameters.

    Parameters may be read without their module's forward (torch's attention reads its output projection's) or before
    it. The first forward, which has no update to wait for, shows which are; they are updated before the later forwards.
    Some later forwards are watched too, and one that reads a parameter before its update is an error. What no forward
    touched is updated before backward. `paused` is called wherever a forward really had to wait.

    Watching makes a forward some 4 % longer. Watched are powers of two, and one forward in twenty, whose numbers have
    many divisors: a network that reads early once in k forwards is seen within 12 k, for k up to 6 within 30.
    """

    def __init__(
        self, model: nn.Module, optimizer: OptimizerSpec, engine: Engine, *, paused: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(model, optimizer, engine)
        self._paused = paused
        self._group_of: dict[str, _Group] = {}
        self._pending: dict[_Group, None] = {}  # in order of forward
        self._first = True
        self._num_forwards = 0
        self._watching = ExitStack()
        self._read: set[_Group] = set()
        self._hook_of: dict[nn.Module, int] = {}
        model.register_forward_pre_hook(self._begin_forward, prepend=True)
        model.register_forward_hook(self._end_forward, always_call=True)
        names = {id(parameter): name for name, parameter in engine.parameters.items()}
        for module in model.modules():
            # A module's own parameters: a container would wait for those of all its children at once.
            own = [names[id(p)] for p in module.parameters(recurse=False) if id(p) in names]
            fresh = [name for name in own if name not in self._group_of]
            if fresh:
                group = _Group(fresh, optimizer.build([(name, engine.parameters[name]) for name in fresh]))
                self._group_of.update(dict.fromkeys(fresh, group))
            if own:
                groups = list(dict.fromkeys(map(self._group_of.__getitem__, own)))
                self._hook_of[module] = module.register_forward_pre_hook(self._pre_hook(groups), prepend=True).id
        self._early = dict.fromkeys(self._group_of.values())  # updated before a forward
        self._names = names

    def _pre_hook(self, groups: Iterable[_Group]) -> Callable[[nn.Module, object], None]:
        def apply(*_: object) -> None:
            for group in groups:
                if self._num_forwards == 1 and group not in self._read:
                    self._early.pop(group, None)
                self._apply(group)

        # Within a compiled part our waiting and the optimizer would be traced, and round otherwise.
        return cast("Callable[[nn.Module, object], None]", torch.compiler.disable(apply))

    def _begin_forward(self, *_: object) -> None:
        self._num_forwards += 1
        if self._num_forwards & (self._num_forwards - 1) == 0 or self._num_forwards % 60 in (0, 12, 30):
            self._watching.enter_context(_Reads(self._note_read))

    def _end_forward(self, *_: object) -> None:
        self._watching.close()

    def _note_read(self, tensor: Tensor) -> None:
        name = self._names.get(id(tensor))
        if name is None:
            return
        group = self._group_of[name]
        self._read.add(group)
        if group in self._pending:
            raise ValueError(
                f"{name}: forward {self._num_forwards} reads it before the forward of its layer, and the first one did "
                "not; at-pre-hook would have it read old values: update after-all"
            )

    def _apply(self, group: _Group) -> None:
        if group not in self._pending:
            return
        del self._pending[group]
        # All of them are waited for, whether or not one of them had to be.
        waits = [self._engine.wait_for(name) for name in group.names]
        if any(waits):
            self._paused()
        if not (self._muted and self._adopts):
            group.optimizer.step()
        group.optimizer.zero_grad()

    def _apply_all(self) -> None:
        for group in list(self._pending):
            self._apply(group)

    def wait(self) -> None:
        """Nothing to wait for between steps, but once: the engine agrees on its layout after the first one."""
        if self._due and self._first:  # the engine agrees on its layout after the first step
            self._engine.wait()
            self._first = False

    def update(self) -> None:
        """Update what the forward may read before our hooks, and leave the rest to them."""
        for group in self._early:
            self._apply(group)
        for module, hook in self._hook_of.items():  # others may have come before it since
            cast("OrderedDict[int, object]", module._forward_pre_hooks).move_to_end(hook, last=False)

    def backward(self, loss: Tensor) -> None:
        """Update what no module's forward has touched, then backward."""
        self._apply_all()
        super().backward(loss)
        if self._last:
            # In order of forward, so that what is updated outside a hook comes in the order in which it is needed.
            self._pending = dict.fromkeys(self._group_of[name] for name in reversed(self._engine.parameters))

    def finish(self) -> None:
        """Wait for everything and update what is left."""
        if self._due:
            self._engine.wait()
        self._apply_all()
        self._due = False
