"""The update waits for the job's next turn, for scripts that want what lies between update and forward outside it.

`optimizer.step()` is put off with the hyper-parameters as they are when it is called, so that a schedule that runs
after it changes only the next one; `zero_grad()` behind it is put off too, in order. Whatever would see the difference
comes after a flush: `state_dict` and `load_state_dict`, `parameters()`, `named_parameters()`, moving, copying or
calling the model or a part of it, `add_param_group`, evaluation. The gradients are noted at `step()`; an update that
finds others raises an error, so that a step is never lost in silence.

What cannot be seen: parameters and `optimizer.state` that a script reads from variables of its own are those before the
update, and an optimizer that draws random numbers draws them later. Such a script attaches without `defer`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from functools import partial
from os import getpid
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from crossover.errors import Refused
from crossover.integrations.computing import Computing
from crossover.integrations.exact import Context
from crossover.integrations.overriding import Overrides
from crossover.keeper import TurnKeeper

READS_PARAMETERS = ("parameters", "named_parameters", "_apply")
CHANGES_STEPS = ("load_state_dict", "add_param_group")

Gradients = list[tuple[Tensor, Tensor | None, int]]  # parameter, its gradient, and how often that had been written


class DeferredUpdates:
    """What is replaced on the optimizers, and on the modules that hold their parameters: wrappers, models and every
    part of them.

    `context` is called at each `step()` and gives what its update has to run under later; where there is one, messages
    arrive in the gradients between the two.
    """

    def __init__(
        self,
        keeper: TurnKeeper,
        computing: Computing,
        modules: tuple[nn.Module, ...],
        optimizers: tuple[Any, ...],
        *,
        context: Context | None = None,
    ) -> None:
        self._keeper, self._computing, self._context = keeper, computing, context
        self._overrides = Overrides()
        self._handles: list[Any] = []
        for optimizer in optimizers:
            self._watch_optimizer(optimizer)
        parts = {id(part): part for module in modules for part in module.modules()}
        for part in parts.values():
            self._watch_module(part, is_first=part not in modules)
        ids = computing.hook_ids.union(handle.id for handle in self._handles)
        for part in parts.values():
            self._overrides.let_copies_be_without(part, ids, before=keeper.flush)

    def undo(self) -> None:
        """Put everything back."""
        self._overrides.undo()
        for handle in self._handles:
            handle.remove()

    def _watch_optimizer(self, optimizer: Optimizer) -> None:
        self._overrides.replace(optimizer, "step", partial(self._step, optimizer))
        self._overrides.replace(optimizer, "zero_grad", self._zero_grad)
        for name in (*CHANGES_STEPS, "__reduce_ex__"):
            self._overrides.before(optimizer, name, self._keeper.flush)
        self._handles.append(optimizer.register_state_dict_pre_hook(self._flush))

    def _watch_module(self, module: nn.Module, *, is_first: bool) -> None:
        """The flush `is_first` of a part's hooks, since others compute from its parameters; a model's turn runs it."""
        self._overrides.replace(module, "zero_grad", self._zero_grad)
        for name in READS_PARAMETERS:
            self._overrides.before(module, name, self._keeper.flush)
        self._handles += [
            module.register_state_dict_pre_hook(self._flush),
            module.register_load_state_dict_pre_hook(self._flush),
            module.register_forward_pre_hook(torch.compiler.disable(self._flush), prepend=is_first),
        ]

    def _flush(self, *_: Any) -> None:
        self._keeper.flush()

    def _step(
        self,
        optimizer: Any,
        inner: Callable[..., Any],
        closure: Callable[[], Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        self._keeper.flush()  # of another optimizer's step
        if closure is not None:
            return self._step_with(optimizer, closure, partial(inner, *args, **kwargs))
        self._computing.check_seen(optimizer)
        context = nullcontext() if self._context is None else self._context()
        update = partial(inner, *args, **kwargs)
        if args or kwargs or hasattr(optimizer, "grad_scale"):  # a scaler's, for this call only
            with self._keeper.aside(), context:
                return update()
        put_off = _PutOff(optimizer, context, update, are_gradients_written=self._context is not None)
        self._keeper.defer(put_off)
        optimizer._opt_called = True  # learning-rate schedulers warn where it is missing
        return None

    def _step_with(self, optimizer: Any, closure: Callable[[], Any], step: Callable[..., Any]) -> Any:
        """At once. The closure's forwards take turns of their own, since they wait for messages; around them, a lease
        aside."""
        context = nullcontext() if self._context is None else self._context()
        with ExitStack() as lease:

            def evaluate() -> Any:
                lease.close()
                loss = closure()
                self._computing.check_seen(optimizer)
                lease.enter_context(self._keeper.aside())
                return loss

            lease.enter_context(self._keeper.aside())
            with context:
                return step(evaluate)

    def _zero_grad(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        call = partial(inner, *args, **kwargs)
        if self._keeper.is_deferring:
            self._keeper.defer(call)
        else:
            call()


class _PutOff:
    """One update, with everything as it was when it was called."""

    def __init__(
        self,
        optimizer: Optimizer,
        context: AbstractContextManager[None],
        update: Callable[[], Any],
        *,
        are_gradients_written: bool,
    ) -> None:
        self._optimizer, self._context, self._update = optimizer, context, update
        self._are_written, self._pid = are_gradients_written, getpid()
        self._hyper_parameters = _hyper_parameters(optimizer)
        self._gradients: Gradients = [
            (parameter, parameter.grad, 0 if parameter.grad is None else parameter.grad._version)
            for group in optimizer.param_groups
            for parameter in group["params"]
        ]

    def __call__(self) -> None:
        """Run it with the hyper-parameters of its call, then show the present ones again. What the update itself writes
        among them stays, unless the script has changed it since."""
        if self._are_written and getpid() != self._pid:
            raise Refused(
                "this process was forked while an update was put off whose messages come to its parent alone: attach "
                "without defer, or read parameters() before the fork"
            )
        self._check_gradients()
        groups = self._optimizer.param_groups
        present = [dict(_others(group)) for group in groups]
        for group, then in zip(groups, self._hyper_parameters, strict=True):
            group.update(then)
        try:
            with self._context:
                self._update()
        finally:
            for group, then, now in zip(groups, self._hyper_parameters, present, strict=True):
                written = {
                    name for name, value in then.items() if group[name] is not value and _is_same(now[name], value)
                }
                group.update({name: value for name, value in now.items() if name not in written})

    def _check_gradients(self) -> None:
        changed = sum(
            parameter.grad is not gradient
            or (gradient is not None and not self._are_written and gradient._version != version)
            for parameter, gradient, version in self._gradients
        )
        if changed:
            raise Refused(
                f"{changed} of {len(self._gradients)} gradients were changed or dropped between step() and the update "
                "that defer=True had put off, which would have lost the step: attach without defer, or change "
                "gradients only with zero_grad() of the optimizer, the model or its parts"
            )


def _hyper_parameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What each parameter group says besides its parameters, safe from later changes in place."""
    return [
        {name: value.clone() if isinstance(value, Tensor) else copy(value) for name, value in _others(group)}
        for group in optimizer.param_groups
    ]


def _others(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in group.items() if name != "params"]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
