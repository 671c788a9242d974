"""Any torch model: forward and backward are a turn, the update is put off to the next one.

The script's own messages, if it sends any, travel between `backward()` and `step()`, outside the turns.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from crossover.client import TurnTaking
from crossover.integrations import Bond, Manner, Team
from crossover.integrations.computing import Computing
from crossover.integrations.updating import Context, Updating
from crossover.integrations.workers import (
    check_supported,
    device_name,
    device_of,
    idling,
    process_group_team,
    synchronizing,
)
from crossover.keeper import TurnKeeper


def claims(model: Any, optimizer: Any) -> bool:
    """Everything that torch calls a module."""
    return isinstance(model, nn.Module) and (optimizer is None or isinstance(optimizer, Optimizer))


def team(model: nn.Module, optimizer: Optimizer | None) -> Team:
    """The workers of the default process group where the script has one, else this one alone."""
    check_supported(model, optimizer)
    device = device_of(model)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return process_group_team(device, None)
    return Team(agree=lambda entry: entry, device=device_name(device, None))


def bind(model: nn.Module, optimizer: Optimizer | None, turns: TurnTaking, manner: Manner) -> Bond:
    """Hooks on the model and the optimizer."""
    device = device_of(model)
    keeper = TurnKeeper(turns, wait=synchronizing(device), idle=idling(device, manner.release))
    return hooked(keeper, (model,), optimizer, manner)


def hooked(
    keeper: TurnKeeper,
    modules: tuple[nn.Module, ...],
    optimizer: Optimizer | None,
    manner: Manner,
    context: Context = nullcontext,
) -> Bond:
    """Turns by hooks. The last of `modules` is the one that computes, the others wrap it; `context` is what each
    update has to run under."""
    computing = Computing(keeper, modules[-1])
    compiled_from = getattr(modules[-1], "_orig_mod", None)  # torch.compile's: the script may read either
    if isinstance(compiled_from, nn.Module):
        modules = (*modules, compiled_from)
    updating = Updating(keeper, modules, optimizer, context=context, defer=manner.defer)
    for module in modules:
        updating.let_copies_be_unattached(module, computing.hook_ids)

    def undo() -> None:
        computing.remove()
        updating.undo()

    return Bond(keeper=keeper, undo=undo)
