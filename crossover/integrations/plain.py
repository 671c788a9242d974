"""Any torch models: update, forward and backward are a turn.

The script's own messages, if it sends any, travel between `backward()` and `step()`, outside the turns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from crossover.client import TurnTaking
from crossover.errors import Refused
from crossover.integrations import Bond, Manner, Team
from crossover.integrations.computing import Computing
from crossover.integrations.deferring import DeferredUpdates
from crossover.integrations.exact import Context, ExactUpdates
from crossover.integrations.overriding import Overrides
from crossover.integrations.workers import (
    check_supported,
    device_name,
    device_of,
    idling,
    num_local_workers,
    process_group_team,
    synchronizing,
)
from crossover.keeper import TurnKeeper


def claims(models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> bool:
    """Everything that torch calls a module."""
    return are_torch(models, optimizers)


def are_torch(models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> bool:
    """Whether all of these are torch modules and torch optimizers."""
    return all(isinstance(model, nn.Module) for model in models) and all(
        isinstance(optimizer, Optimizer) for optimizer in optimizers
    )


def team(models: tuple[nn.Module, ...], optimizers: tuple[Optimizer, ...]) -> Team:
    """The workers of the default process group where the script has one, else this one alone."""
    check_supported(models, optimizers)
    device = device_of(models[0])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return process_group_team(device, None)
    # without a launcher it is the job's only worker
    return Team(agree=None, device=device_name(device, None), num_local=num_local_workers() or 1)


def bind(models: tuple[nn.Module, ...], optimizers: tuple[Optimizer, ...], turns: TurnTaking, manner: Manner) -> Bond:
    """Hooks on the models and the optimizers."""
    device = device_of(models[0])
    keeper = TurnKeeper(
        turns,
        wait=synchronizing(device),
        idle=idling(device, manner.release),
        rest_limit_s=manner.rest_limit_s,
        is_sole=manner.is_sole,
    )
    return hooked(keeper, models, optimizers, manner)


def hooked(
    keeper: TurnKeeper,
    models: tuple[nn.Module, ...],
    optimizers: tuple[Optimizer, ...],
    manner: Manner,
    *,
    wrappers: tuple[nn.Module, ...] = (),
    context: Context | None = None,
) -> Bond:
    """Turns by hooks. `models` are those that compute, `wrappers` are around them; `context` is what each update has
    to run under, where `step()` waits for messages."""
    refuse = refuse_inside_ddp if manner.defer and not wrappers else None
    computing = Computing(keeper, models, refuse)
    if manner.defer:
        updates: DeferredUpdates | ExactUpdates = DeferredUpdates(
            keeper, computing, (*wrappers, *models), optimizers, context=context
        )
    else:
        updates = ExactUpdates(keeper, computing, optimizers, context=context)
    copies = Overrides()
    if not manner.defer:
        for model in models:
            copies.let_copies_be_without(model, computing.hook_ids)

    def undo() -> None:
        computing.remove()
        copies.undo()
        updates.undo()

    return Bond(keeper=keeper, undo=undo)


def refuse_inside_ddp(model: nn.Module) -> None:
    """A deferred update has to come before the wrapper is read, too, so the wrapper is what must be attached."""
    wrapper = torch.nn.parallel.DistributedDataParallel._active_ddp_module
    if wrapper is not None and wrapper.module is model:
        raise Refused(
            f"{type(model).__name__} is inside a DistributedDataParallel model and its updates are deferred: attach "
            "the DistributedDataParallel model, or attach without defer"
        )
