"""Horovod: `optimizer.step()` is a wait, `synchronize()`, and an update. The wait comes in front of the turn, the
update at its beginning.

Scripts that clip call `optimizer.synchronize()` themselves and step under `optimizer.skip_synchronize()`: then the
messages have been waited for already. With `defer` the two happen at the next turn, and `hvd.shutdown()` comes after a
flush.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from crossover.client import TurnTaking
from crossover.errors import Refused
from crossover.integrations import Bond, Manner, Team
from crossover.integrations.overriding import Overrides
from crossover.integrations.plain import are_torch, hooked
from crossover.integrations.workers import (
    NCCL_IS_STRICT,
    check_supported,
    device_name,
    device_of,
    idling,
    synchronizing,
)
from crossover.keeper import TurnKeeper

_POLL_S = 100e-6


def claims(models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> bool:
    """An optimizer that `hvd.DistributedOptimizer` made: its class is new, its methods are Horovod's."""
    return are_torch(models, optimizers) and any(hasattr(optimizer, "skip_synchronize") for optimizer in optimizers)


def team(models: tuple[nn.Module, ...], optimizers: tuple[Any, ...]) -> Team:
    """The workers of the optimizer's process set."""
    import horovod.torch as hvd

    check_supported(models, optimizers)
    if len(optimizers) > 1:
        raise Refused(
            f"{len(optimizers)} Horovod optimizers in one job: put the parameters of all models into one optimizer, or "
            "use DistributedDataParallel models"
        )
    (optimizer,) = optimizers
    if hasattr(optimizer, "_starting_models"):
        raise Refused("op=hvd.Adasum computes its update in backward's hooks: use op=hvd.Average or hvd.Sum")
    device = device_of(models[0])

    def agree(entry: int) -> int:
        latest = torch.tensor([entry], dtype=torch.int64)
        latest = hvd.allreduce(latest, name="crossover.round", op=hvd.Max, process_set=optimizer.process_set)
        return int(latest)

    world = optimizer.process_set.size()
    strict = NCCL_IS_STRICT if device.type == "cuda" and hvd.nccl_built() else ""
    name = device_name(device, hvd.local_rank())
    return Team(
        agree=agree if world > 1 else None,
        device=name,
        strict=strict,
        num_local=min(hvd.local_size(), world),
        world=world,
    )


def bind(models: tuple[nn.Module, ...], optimizers: tuple[Any, ...], turns: TurnTaking, manner: Manner) -> Bond:
    """Hooks on the models and the optimizer, and a flush in front of `hvd.shutdown`."""
    import horovod.torch as hvd

    device = device_of(models[0])
    messages = _Messages(optimizers[0], torch_wait=synchronizing(device))
    idle = idling(device, manner.release)
    keeper = TurnKeeper(turns, wait=messages.wait, idle=idle, rest_limit_s=manner.rest_limit_s, is_sole=manner.is_sole)
    bond = hooked(keeper, models, optimizers, manner, context=messages.of_this_step)
    shutdown = Overrides()
    shutdown.before(hvd, "shutdown", keeper.flush)

    def undo() -> None:
        shutdown.undo()
        bond.undo()

    return Bond(keeper=keeper, undo=undo)


class _Messages:
    """The optimizer's all-reduces, between `step()` and its update."""

    def __init__(self, optimizer: Any, torch_wait: Any) -> None:
        self._optimizer, self._torch_wait = optimizer, torch_wait
        self._is_due = False

    def wait(self) -> None:
        """Until the messages of the step are complete; of a backward without a step, until they have arrived."""
        if self._is_due:
            self._is_due = False
            self._optimizer.synchronize()
        else:
            self._arrive()
        self._torch_wait()

    def of_this_step(self) -> AbstractContextManager[None]:
        """What the update of the present `step()` has to run under."""
        self._is_due = bool(self._optimizer._should_synchronize)
        return self._synchronized()

    @contextmanager
    def _synchronized(self) -> Iterator[None]:
        if self._is_due:  # in a turn that an error left open: there was no wait in front of it
            self.wait()
        with self._optimizer.skip_synchronize():
            yield

    def _arrive(self) -> None:
        """Like `synchronize`, but the handles stay: the script may still add to the gradients or clip them."""
        from horovod.torch.mpi_ops import poll

        for handle, _ in tuple(self._optimizer._handles.values()):
            while handle is not None and not callable(handle) and not poll(handle):
                time.sleep(_POLL_S)
