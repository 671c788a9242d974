"""torch DistributedDataParallel as itself: the baseline everybody has.

`find_unused_parameters` stays off and BatchNorm statistics stay local (`broadcast_buffers` off),
as they do in Horovod and in our engine. `bucket_mb` 0 means torch's own default: 25 MiB after a
first bucket of 1 MiB.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from harness.systems.api import PlainSession, Seat, Session, SystemCard


@dataclass(frozen=True, slots=True)
class TorchDdp:
    card: ClassVar[SystemCard] = SystemCard(
        name="torch-ddp",
        summary="torch DistributedDataParallel, default buckets",
        source="Li et al., PyTorch Distributed, VLDB 2020",
    )
    bucket_mb: float = 0.0
    fp16: bool = False

    def why_unavailable(self) -> str | None:
        return None if dist.is_available() else "torch.distributed is not in this torch; install a build that has it"

    def prepare(self, model: nn.Module, seat: Seat) -> Session:
        wrapped = DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=self.bucket_mb or None)
        if self.fp16:
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return DdpSession(wrapped, seat.strategy.optimizer.build(model.parameters()), clip_norm=seat.clip_norm)


class DdpSession(PlainSession):
    """Backward returns when all buckets are reduced, so computing and waiting are not told apart.

    All but the last micro-batch, forward and backward, run under `no_sync`.
    """

    separates_waiting: ClassVar[bool] = False

    def __init__(
        self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, *, clip_norm: float | None = None
    ) -> None:
        super().__init__(model, optimizer, clip_norm=clip_norm)
        self._wrapped, self._local = model, ExitStack()

    def begin_micro_batch(self, *, last: bool) -> None:
        super().begin_micro_batch(last=last)
        self._local.close()
        if not last:
            self._local.enter_context(self._wrapped.no_sync())
