"""Forward begins a turn; the end of backward ends it.

    model(batch), training       begin() → forward
    loss.backward()              … all gradients computed → end() → the framework waits for its messages
    model(batch), otherwise      under a lease aside (evaluation, `torch.no_grad()`)

Several models of one job (a GAN's two, an encoder and a decoder) share the turn: a forward inside a turn goes on
with it.

The end is a callback of the autograd engine. The first gradient that backward computes at the model's output queues
it, so it comes before the callback in which DistributedDataParallel waits for its communication, whatever communication
hook that has. If there is no such end, because something was raised or the outputs are dropped, the turn ends when the
interpreter frees the callback or the outputs' graph.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from crossover.errors import CrossoverError, Refused
from crossover.keeper import TurnKeeper
from crossover.policies import Extent

_log = logging.getLogger("crossover")


class Computing:
    """The hooks on a job's models. `refuse(module)`, where given, runs at each training forward and may raise."""

    def __init__(
        self, keeper: TurnKeeper, models: tuple[nn.Module, ...], refuse: Callable[[nn.Module], None] | None = None
    ) -> None:
        self._keeper, self._refuse = keeper, refuse
        self._forwards: list[_Forward] = []  # a stack
        self._num_forwards = 0
        self._num_seen = 0  # forwards with gradients, in whatever mode the model is
        self._num_seen_at_step: dict[int, int] = {}  # by the optimizer's identity
        self._unended: weakref.WeakSet[_Unended] = weakref.WeakSet()
        # A compiled model calls its hooks from compiled code. Turns are no part of a graph: it has to break there.
        before, after = torch.compiler.disable(self._before_forward), torch.compiler.disable(self._after_forward)
        self._handles = [
            handle
            for model in models
            for handle in (
                model.register_forward_pre_hook(before, prepend=True),
                model.register_forward_hook(after, prepend=True, always_call=True),
            )
        ]

    @property
    def hook_ids(self) -> set[int]:
        """The keys of the hooks in the models' tables."""
        return {handle.id for handle in self._handles}

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()

    def is_latest(self, forward: int) -> bool:
        """Whether no forward came after this one."""
        return forward == self._num_forwards

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward pass computes now that will end the turn."""
        return bool(self._unended)

    def watch(self, unended: _Unended) -> None:
        """Note a backward pass that begins."""
        self._unended.add(unended)

    def check_seen(self, optimizer: Any) -> None:
        """Raise `Refused` if this optimizer has gradients, but no forward with gradients was seen since its last step
        (or since attaching): what computed them has then taken no turn."""
        if self._num_seen == self._num_seen_at_step.get(id(optimizer), 0) and _has_gradients(optimizer):
            raise Refused(
                f"{type(optimizer).__name__}.step() without a forward of an attached model before it: call the model "
                "itself, model(batch), and not model.forward, another method or a part of it; or attach the parts that "
                "the script calls, attach((encoder, decoder), optimizer); and attach before the step's forward"
            )
        self._num_seen_at_step[id(optimizer)] = self._num_seen

    def _before_forward(self, module: nn.Module, _: Any) -> None:
        place = threading.get_ident(), _num_frames()
        self._give_up_stopped(*place)
        self._num_seen += torch.is_grad_enabled()
        if module.training and torch.is_grad_enabled():
            if self._refuse is not None:
                self._refuse(module)
            self._num_forwards += 1  # before the turn begins: an older graph that is freed now must not end it
            self._keeper.begin()
            self._forwards.append(_Forward(*place))
        else:
            evaluation = ExitStack()
            evaluation.enter_context(self._keeper.aside())
            self._forwards.append(_Forward(*place, evaluation))

    def _give_up_stopped(self, thread: int, num_frames: int) -> None:
        """End what forwards have left that Ctrl-C has stopped: torch calls the second hook after an `Exception` alone.
        A forward that still runs has called this one, so its frames are fewer."""
        while self._forwards and self._forwards[-1].thread == thread and self._forwards[-1].num_frames >= num_frames:
            stopped = self._forwards.pop()
            if stopped.evaluation is None:
                _end_quietly(self._keeper)
            else:
                stopped.evaluation.close()

    def _after_forward(self, _: nn.Module, __: Any, output: Any) -> None:
        if not self._forwards:  # the turn could not begin
            return
        evaluation = self._forwards.pop().evaluation
        if evaluation is not None:
            evaluation.close()
            return
        outputs = [tensor for tensor in tensors_in(output) if tensor.requires_grad]
        if not outputs or self._keeper.extent is Extent.FORWARD:  # no outputs: nothing to differentiate, or an error
            self._keeper.end()
            return
        graph = _Graph(self._keeper, self, self._num_forwards)
        for tensor in outputs:
            tensor.register_hook(graph.begin_backward)


@dataclass(frozen=True, slots=True)
class _Forward:
    """A forward under way: its thread, that thread's frames when it began, and an evaluation's lease."""

    thread: int
    num_frames: int
    evaluation: ExitStack | None = None


class _Graph:
    """One forward's outputs, as their gradient hooks see them."""

    def __init__(self, keeper: TurnKeeper, computing: Computing, forward: int) -> None:
        self._keeper, self._computing, self._forward = keeper, computing, forward
        self._pass: Callable[[], _Pass | None] = lambda: None
        self._was_used = False

    def begin_backward(self, _: Tensor) -> None:
        """At the first gradient of each backward pass: have it end the turn, and take one if there is none."""
        if self._pass() is not None:
            return
        self._was_used = True
        self._keeper.begin()
        unended = _Unended(self._keeper)
        self._computing.watch(unended)
        ending = _Pass(self._keeper, unended)
        self._pass = weakref.ref(ending)  # the engine alone keeps it, until the pass has ended or failed
        _queue(ending)

    def __del__(self) -> None:
        if not self._was_used and self._computing.is_latest(self._forward):
            _end_quietly(self._keeper)


class _Pass:
    """One backward pass; called when all its gradients are computed, freed without a call if it failed.

    Nothing in Python runs when the engine frees one that has ended: that is behind the framework's wait for messages,
    and a Ctrl-C that came meanwhile would be raised there, and lost.
    """

    def __init__(self, keeper: TurnKeeper, unended: _Unended) -> None:
        self._keeper = keeper
        self._unended: _Unended | None = unended
        self._is_last = keeper.extent is not Extent.MESSAGES

    def __call__(self) -> None:
        if not self._is_last:  # behind the callback in which the framework waits for its messages
            self._is_last = True
            _queue(self)
            return
        self._keeper.end()
        self._unended = None


class _Unended:
    """A part of every backward pass that has not ended; freed with one that failed, it ends the turn."""

    def __init__(self, keeper: TurnKeeper) -> None:
        self._keeper = keeper

    def __del__(self) -> None:
        _end_quietly(self._keeper)


def _queue(callback: Callable[[], None]) -> None:
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def _end_quietly(keeper: TurnKeeper) -> None:
    """End a turn where nothing can be raised: the arbiter's absence shows at the next turn."""
    try:
        keeper.end()
    except CrossoverError as error:
        _log.warning("a turn that nothing ended could not be given back: %s", error)


def _num_frames() -> int:
    """How deep the caller stands in its thread's calls."""
    count, frame = 0, sys._getframe().f_back
    while frame is not None:
        count, frame = count + 1, frame.f_back
    return count


def _has_gradients(optimizer: Any) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a model's output, each once: nested sequences, mappings, dataclasses and objects' attributes."""
    pending, seen = [value], dict[int, Any]()  # what was seen is kept: another object would get its identity
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, Tensor):
            yield one
        else:
            pending.extend(reversed([*_parts_of(one)]))  # the last in is the first out: outputs keep their order


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, (nn.Module, ModuleType, type)):  # an output may name them, but they are no part of it
        return ()
    if is_dataclass(value):
        return [getattr(value, field.name) for field in fields(value)]
    return getattr(value, "__dict__", {}).values()
