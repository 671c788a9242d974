"""The update waits for the job's next turn, and nobody can tell.

`optimizer.step()` is put off with the hyper-parameters as they are when it is called, so that a schedule that runs
after it changes only the next one; `zero_grad()` behind it is put off too, in order. Whatever would see the difference
comes after a flush: `state_dict` and `load_state_dict` of both, `parameters()`, `named_parameters()`, moving or copying
the model, `add_param_group`, evaluation. A script that keeps parameters in a list of its own and reads them between
`step()` and the next forward sees them before the update; such a script attaches with `defer=False`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from crossover.integrations.overriding import Overrides
from crossover.keeper import TurnKeeper

READS_PARAMETERS = ("parameters", "named_parameters", "_apply")
CHANGES_STEPS = ("load_state_dict", "add_param_group")

Context = Callable[[], AbstractContextManager[None]]


class Updating:
    """What is replaced on one optimizer and on the modules that hold its parameters (a wrapper and what it wraps).

    `context` is called at each `step()` and gives what its update has to run under later. Without `defer` a step runs
    when it is called, under a lease aside.
    """

    def __init__(
        self,
        keeper: TurnKeeper,
        modules: tuple[nn.Module, ...],
        optimizer: Optimizer | None,
        *,
        context: Context = nullcontext,
        defer: bool = True,
    ) -> None:
        self._keeper, self._context, self._defer = keeper, context, defer
        self._overrides = Overrides()
        self._handles: list[Any] = []
        if optimizer is not None:
            self._watch_optimizer(optimizer)
        for module in modules:
            self._watch_module(module)

    def undo(self) -> None:
        """Put everything back."""
        self._overrides.undo()
        for handle in self._handles:
            handle.remove()

    def _watch_optimizer(self, optimizer: Optimizer) -> None:
        self._overrides.replace(optimizer, "step", partial(self._step, optimizer))
        self._overrides.replace(optimizer, "zero_grad", self._zero_grad)
        for name in CHANGES_STEPS:
            self._overrides.before(optimizer, name, self._keeper.flush)
        self._overrides.replace(optimizer, "__reduce_ex__", self._reduce)
        self._handles.append(optimizer.register_state_dict_pre_hook(self._flush))

    def _watch_module(self, module: nn.Module) -> None:
        self._overrides.replace(module, "zero_grad", self._zero_grad)
        for name in READS_PARAMETERS:
            self._overrides.before(module, name, self._keeper.flush)
        self._handles.append(module.register_state_dict_pre_hook(self._flush))
        self._handles.append(module.register_load_state_dict_pre_hook(self._flush))

    def let_copies_be_unattached(self, module: nn.Module, hook_ids: set[int]) -> None:
        """Deep copies and pickles of `module` are as if nothing was attached to it; `hook_ids` are not copied."""
        ids = hook_ids.union(handle.id for handle in self._handles)

        def reduce(inner: Callable[..., Any], *args: Any) -> Any:
            self._keeper.flush()
            how, what, state, *others = inner(*args)
            return how, what, _without(state, self._overrides.names_on(module), ids), *others

        self._overrides.replace(module, "__reduce_ex__", reduce)

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
        self._keeper.flush()  # a second step without a forward in between
        context = self._context()
        if closure is not None:
            return self._step_with(closure, context, partial(inner, *args, **kwargs))
        update = partial(inner, *args, **kwargs)
        if args or kwargs or not self._defer or hasattr(optimizer, "grad_scale"):  # a scaler's, for this call only
            with self._keeper.aside(), context:
                return update()
        self._keeper.defer(partial(_update_as_called, optimizer, _hyper_parameters(optimizer), context, update))
        optimizer._opt_called = True  # learning-rate schedulers warn where it is missing
        return None

    def _step_with(
        self, closure: Callable[[], Any], context: AbstractContextManager[None], step: Callable[..., Any]
    ) -> Any:
        """At once. The closure's forwards take turns of their own, since they wait for messages; around them, a lease
        aside."""
        with ExitStack() as lease:

            def evaluate() -> Any:
                lease.close()
                loss = closure()
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

    def _reduce(self, inner: Callable[..., Any], *args: Any) -> Any:
        """A copy or a pickle of the optimizer shows what the script expects to see."""
        self._keeper.flush()
        return inner(*args)


def _without(state: Any, names: set[str], hook_ids: set[int]) -> Any:
    """A module's state without these attributes and hooks."""
    if not isinstance(state, dict):
        return state
    kept = {name: value for name, value in state.items() if name not in names}
    for name, value in kept.items():
        if "_hooks" in name and isinstance(value, dict):
            kept[name] = type(value)((key, hook) for key, hook in value.items() if key not in hook_ids)
    return kept


def _hyper_parameters(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What each parameter group says besides its parameters, safe from later changes in place."""
    return [
        {name: value.clone() if isinstance(value, Tensor) else copy(value) for name, value in _others(group)}
        for group in optimizer.param_groups
    ]


def _others(group: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in group.items() if name != "params"]


def _update_as_called(
    optimizer: Optimizer,
    called_with: list[dict[str, Any]],
    context: AbstractContextManager[None],
    update: Callable[[], Any],
) -> None:
    """Run the update with the hyper-parameters of its call, then show the present ones again. What the update itself
    writes among them stays, unless the script has changed it since."""
    groups = optimizer.param_groups
    present = [dict(_others(group)) for group in groups]
    for group, then in zip(groups, called_with, strict=True):
        group.update(then)
    try:
        with context:
            update()
    finally:
        for group, then, now in zip(groups, called_with, present, strict=True):
            written = {name for name, value in then.items() if group[name] is not value and _is_same(now[name], value)}
            group.update({name: value for name, value in now.items() if name not in written})


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)
