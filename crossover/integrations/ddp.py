"""torch DistributedDataParallel: a turn is over before `backward()` waits for the communication.

    DDP.forward:   buffers and buckets (messages, no turn) → forward of the wrapped module (turn)
    backward:      gradients, buckets sent → release → DDP waits for its buckets → backward() returns

So the hooks are on the wrapped module. The release is a callback queued at the start of backward, in front of DDP's own
final callback; any communication hook of the script stays as it is. On CUDA DDP does not wait but orders its streams;
there the wait is in front of the next turn.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from crossover.client import TurnTaking
from crossover.integrations import Bond, Manner, Team
from crossover.integrations.plain import are_torch, hooked
from crossover.integrations.workers import check_supported, device_of, idling, process_group_team, synchronizing
from crossover.keeper import TurnKeeper


def claims(models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> bool:
    """Models of which one at least is in torch's DistributedDataParallel."""
    return are_torch(models, optimizers) and any(isinstance(model, DistributedDataParallel) for model in models)


def team(models: tuple[nn.Module, ...], optimizers: tuple[Optimizer, ...]) -> Team:
    """The workers of the first such model's process group."""
    check_supported(models, optimizers)
    wrapper = next(model for model in models if isinstance(model, DistributedDataParallel))
    return process_group_team(device_of(wrapper), wrapper.process_group)


def bind(models: tuple[nn.Module, ...], optimizers: tuple[Optimizer, ...], turns: TurnTaking, manner: Manner) -> Bond:
    """Hooks on the wrapped modules and the optimizers."""
    device = device_of(models[0])
    keeper = TurnKeeper(
        turns, wait=synchronizing(device), idle=idling(device, manner.release), rest_limit_s=manner.rest_limit_s
    )
    wrappers = tuple(model for model in models if isinstance(model, DistributedDataParallel))
    inner = tuple(model.module if isinstance(model, DistributedDataParallel) else model for model in models)
    return hooked(keeper, inner, optimizers, manner, wrappers=wrappers)
