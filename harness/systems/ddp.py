"""torch DistributedDataParallel as itself: the baseline everybody has.

`find_unused_parameters` is for networks of which a step does not use all parameters: without it DDP
ends with an error in the step after, with it DDP walks the graph of each forward. A parameter that no rank used is not
updated; our engine and Horovod update it with a gradient of zero. BatchNorm statistics stay local (`broadcast_buffers`
off), as they do in Horovod and in our engine. `bucket_mb` 0 means torch's own default: 25 MiB after a
first bucket of 1 MiB; any other is the size of the first bucket too, as torch has it where a size is given.

`hook` is one of torch's own communication hooks: `fp16` and `bf16` send halves, `powersgd` matrices of
rank `powersgd_rank` with error feedback and warm start (Vogels et al., NeurIPS 2019), where they are half
of a tensor's size or less. It starts at step `start_iter`, 2 or later, since DDP makes new buckets after
its first step and the hook keeps its residuals by bucket; torch's default of 1000 is for long runs. The
model is one bucket then: the hook starts sums in callbacks, and with two buckets on gloo, where their
order is not the same on all ranks, it aborted in 3 of 3 runs (torch 2.13, ResNet-20, 2 ranks). An
overflow in float16 would stay in the residuals, so the two do not go together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from baselines.api import size
from baselines.text import TextError
from harness.precision import Precision
from harness.systems.api import PlainSession, RankSeat, Session, SystemCard, scaler_for

POWERSGD = "powersgd"
WHOLE_MODEL_MB = 1e6
HOOKS: Mapping[str, Callable[..., Any]] = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
    POWERSGD: powerSGD_hook,
}


@dataclass(frozen=True, slots=True)
class TorchDdp:
    card: ClassVar[SystemCard] = SystemCard(
        name="torch-ddp",
        summary="torch DistributedDataParallel, default buckets",
        source="Li et al., PyTorch Distributed, VLDB 2020",
    )
    bucket_mb: float = size(0.0, "MB")
    hook: str = ""
    powersgd_rank: int = 4
    start_iter: int = 2
    find_unused_parameters: bool = False

    def __post_init__(self) -> None:
        if self.hook and self.hook not in HOOKS:
            raise TextError(f"torch-ddp: hook is {self.hook!r}; use one of {', '.join(HOOKS)}, or none")
        if self.hook == POWERSGD and self.bucket_mb:
            raise TextError(f"torch-ddp: bucket_mb is {self.bucket_mb} with powersgd, which takes one; leave it out")
        if self.bucket_mb < 0:
            raise TextError(f"torch-ddp: bucket_mb is {self.bucket_mb:g}; give 0 for torch's own default, or a size")
        if self.powersgd_rank < 1 or self.start_iter < 2:
            raise TextError(
                f"torch-ddp: powersgd_rank is {self.powersgd_rank} and start_iter {self.start_iter}; use 1 or more and "
                "2 or more"
            )

    @property
    def precisions(self) -> frozenset[Precision]:
        """What layers may compute in."""
        return frozenset(Precision) - ({Precision.FLOAT16} if self.hook == POWERSGD else set())

    @property
    def num_warmup(self) -> int:
        """Steps until the hook has compressed once, and has its memory."""
        return self.start_iter + 1 if self.hook == POWERSGD else 0

    @property
    def compresses(self) -> bool:
        """Any of torch's hooks sends less than float32."""
        return bool(self.hook)

    def why_unavailable(self) -> str | None:
        """The reason where torch lacks what the hook needs, else None."""
        if not dist.is_available():
            return "torch.distributed is not in this torch; install a build that has it"
        if self.hook == "bf16" and (torch.version.cuda is None or not dist.is_nccl_available()):
            return "torch's bf16 hook needs CUDA and NCCL; use hook='fp16', or the strategy half(dtype='bfloat16')"
        return None

    def why_unpaced(self, *, among_virtual: bool) -> str | None:
        """Every setting can run there: DDP sends by torch.distributed alone."""
        return None

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """Wrap `model` in DDP with the hook and buckets asked for."""
        compresses = self.hook == POWERSGD
        bucket_mb = WHOLE_MODEL_MB if compresses else self.bucket_mb or None
        wrapped = DistributedDataParallel(
            model,
            broadcast_buffers=False,
            bucket_cap_mb=bucket_mb,
            find_unused_parameters=self.find_unused_parameters,
        )
        if self.hook:
            state = PowerSGDState(None, self.powersgd_rank, self.start_iter) if compresses else None
            wrapped.register_comm_hook(state, HOOKS[self.hook])
        optimizer = seat.strategy.optimizer.build(model.named_parameters())
        return DdpSession(wrapped, optimizer, clip_norm=seat.clip_norm, scaler=scaler_for(model, seat.precision))


class DdpSession(PlainSession):
    """Backward returns when all buckets are reduced, so computing and waiting are not told apart.

    All but the last micro-batch, forward and backward, run under `no_sync`.
    """

    separates_waiting = False

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizer: torch.optim.Optimizer,
        *,
        clip_norm: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        super().__init__(model, optimizer, clip_norm=clip_norm, scaler=scaler)
        self._wrapped, self._local = model, ExitStack()

    def begin_micro_batch(self, *, last: bool) -> None:
        """Enter `no_sync` for all but the last: DDP reads it in forward, so it must be set before."""
        super().begin_micro_batch(last=last)
        self._local.close()
        if not last:
            self._local.enter_context(self._wrapped.no_sync())
