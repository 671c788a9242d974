"""torch DistributedDataParallel: a turn is over before `backward()` waits for the communication.

    DDP.forward:   buffers and buckets (messages, no turn) → forward of the wrapped module (turn)
    backward:      gradients, buckets sent → release → DDP waits for its buckets → backward() returns

So the hooks are on the wrapped module. The release is a callback queued at the start of backward, in front of DDP's own
final callback; any communication hook of the script stays as it is. On CUDA DDP does not wait but orders its streams;
there the wait is in front of the next turn.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from crossover.client import TurnTaking
from crossover.integrations import Bond, Manner, Team
from crossover.integrations.plain import hooked
from crossover.integrations.workers import check_supported, device_of, idling, process_group_team, synchronizing
from crossover.keeper import TurnKeeper


def claims(model: Any, optimizer: Any) -> bool:
    """A model in torch's DistributedDataParallel."""
    from torch.nn.parallel import DistributedDataParallel

    return isinstance(model, DistributedDataParallel) and (optimizer is None or isinstance(optimizer, Optimizer))


def team(model: Any, optimizer: Optimizer | None) -> Team:
    """The workers of the model's process group."""
    check_supported(model.module, optimizer)
    return process_group_team(device_of(model), model.process_group)


def bind(model: Any, optimizer: Optimizer | None, turns: TurnTaking, manner: Manner) -> Bond:
    """Hooks on the wrapped module and the optimizer; the wrapper only flushes."""
    device = device_of(model)
    keeper = TurnKeeper(turns, wait=synchronizing(device), idle=idling(device, manner.release))
    return hooked(keeper, (model, model.module), optimizer, manner)
