"""ByteScheduler as its authors published it, over Horovod. UNTESTED here: it cannot be installed beside this torch.

Paper: Peng et al., A Generic Communication Scheduler for Distributed DNN Training Acceleration, SOSP 2019.
The code (github.com/bytedance/byteps, folder bytescheduler) is of 2019 and unmaintained: it needs torch 1.x, a
patched Horovod 0.16 and CUDA, and derives from a class that today's Horovod no longer shows. Where somebody has all
that, this file uses it as its example does: its own hooks gate every layer's forward, and it applies SGD or Adam
itself, a parameter at a time. `partition` and `credit` are in elements, and the defaults are its own.

Everywhere else our `bytescheduler` plug-in stands in for it: the same rule on our engine.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from time import sleep
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines.api import OptimizerSpec
from harness.systems.api import PlainSession, RankSeat, Session, SystemCard
from harness.systems.horovod import connect, why_not_remade


@dataclass(frozen=True, slots=True)
class ByteSchedulerOriginal:
    card: ClassVar[SystemCard] = SystemCard(
        name="bytescheduler-original",
        summary="the authors' ByteScheduler over Horovod, untested: it needs torch 1.x",
        source="Peng et al., SOSP 2019; github.com/bytedance/byteps/tree/bytescheduler",
    )
    partition: int = 4_000_000
    credit: int = 4_000_000

    def why_unavailable(self) -> str | None:
        """The reason where its package is not installed, which is the rule; else None."""
        if importlib.util.find_spec("bytescheduler") is None:
            return (
                "the original ByteScheduler is not installed; it needs torch 1.x, a patched Horovod 0.16 and CUDA, and "
                f"is unmaintained (this is torch {torch.__version__}); use the strategy bytescheduler instead"
            )
        return None

    def why_not_stepped(self, optimizer: OptimizerSpec) -> str | None:
        """As Horovod, which it stands on."""
        return why_not_remade(optimizer)

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """Wrap Horovod's optimizer in the authors' own. Raises: ValueError for accumulation or clipping."""
        if seat.accumulate > 1 or seat.clip_norm is not None:
            raise ValueError(
                "bytescheduler-original updates each parameter by itself; leave accumulate and clip_norm out"
            )
        os.environ.update(
            USE_BYTESCHEDULER="1",
            BYTESCHEDULER_PARTITION=str(self.partition),
            BYTESCHEDULER_CREDIT=str(self.credit),
        )
        hvd, server = connect(seat)
        scheduler = importlib.import_module("bytescheduler.pytorch.horovod")
        scheduler.init()
        optimizer = hvd.DistributedOptimizer(
            seat.strategy.optimizer.build(model.parameters()), named_parameters=model.named_parameters()
        )
        scheduled = scheduler.ScheduledOptimizer(model, optimizer)
        scheduled.step()  # it takes the first call for the one behind the broadcast of parameters
        return ByteSchedulerSession(model, scheduled, hvd, server)


class ByteSchedulerSession(PlainSession):
    """Nothing to wait for or to update between steps: forward waits, layer by layer."""

    separates_waiting = False

    def __init__(self, model: nn.Module, optimizer: Any, hvd: Any, server: Any) -> None:
        super().__init__(model, optimizer)
        self._scheduled, self._hvd, self._server = optimizer, hvd, server

    def backward(self, loss: Tensor) -> None:
        """Backward, then `step` of its optimizer, where its example calls it."""
        super().backward(loss)
        self._scheduled.step()

    def update(self) -> None:
        """Done by its own thread as messages arrive."""

    def finish(self) -> None:
        """Wait until its own thread has updated every parameter."""
        while any(lock.locked() for lock in self._scheduled._locks.values()):  # held until the parameter is updated
            sleep(0.001)

    def close(self) -> None:
        """Shut Horovod down, and once all ranks have, end the rendezvous server."""
        self._hvd.shutdown()
        dist.barrier()
        if self._server is not None:
            self._server.stop()
