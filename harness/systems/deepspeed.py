"""DeepSpeed as itself on CPU tensors: ZeRO stage 0 (plain data parallel) or 1 (optimizer states partitioned).

Paper: Rajbhandari et al., ZeRO, arXiv 1910.02054 (stage 1 is P_os). Not verified against the paper;
read against DeepSpeed 0.19.8.

    engine(batch) → engine.backward(loss) → reduce: all-reduce of buckets → engine.step()

Stage 0 all-reduces the gradients, stage 1 too; with stage 1 each rank updates its part of the
parameters and an all-gather inside `engine.step()` brings the rest. `bucket_mb` 0 means DeepSpeed's
own default, 500 million elements: one bucket for most models.

`engine.backward` reduces when backward has ended, in the same call. Here that part is called by
itself, as DeepSpeed's own pipeline engine does, so that the loop can tell waiting from computing
and a turn ends before it. The all-gather of stage 1 stays inside the update. On the CPU nothing
overlaps: gloo is called synchronously, and `overlap_comm` only moves the calls into backward, where
waiting is not told from computing.
DeepSpeed's all-reduce through shared memory is off: hosts have a link between them.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from baselines.api import OptimizerSpec, Scope, size
from baselines.text import TextError
from harness.systems.api import PlainSession, RankSeat, Session, SystemCard

STAGES = (0, 1)
BYTES_AN_ELEMENT = 4
DEFAULT_BUCKET_ELEMENTS = 500_000_000
SHARED_MEMORY_OP = "deepspeed_shm_comm"
LATE_IMPORT = "deepspeed.runtime.zero.muon.muon_optimizer"  # `initialize` wants it; seconds in every rank otherwise


@dataclass(frozen=True, slots=True)
class DeepSpeed:
    card: ClassVar[SystemCard] = SystemCard(
        name="deepspeed",
        summary="DeepSpeed, ZeRO stage 0 or 1, on the CPU",
        source="Rajbhandari et al., arXiv 1910.02054",
    )
    zero: int = 0
    bucket_mb: float = size(0.0, "MB")
    overlap_comm: bool = False

    def __post_init__(self) -> None:
        if self.zero not in STAGES:
            raise TextError(f"deepspeed: zero is {self.zero}; stages 0 and 1 keep every parameter on every rank")
        if self.bucket_mb < 0:
            raise TextError(f"deepspeed: bucket_mb is {self.bucket_mb:g}; give 0 for its own default, or a size")
        if self.overlap_comm and self.zero != 1:
            raise TextError("deepspeed: overlap_comm is of ZeRO; add zero=1")

    def why_unavailable(self) -> str | None:
        """The reason where it is not installed, else None; does not import it."""
        if importlib.util.find_spec("deepspeed") is None:
            return "DeepSpeed is not installed; install g++, then run make clean setup"
        return None

    def preload(self) -> None:
        """Import it and what it imports late."""
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import deepspeed

        # Else it would go through shared memory, past the link between hosts.
        deepspeed.ops.__compatible_ops__[SHARED_MEMORY_OP] = False
        with suppress(ImportError):
            importlib.import_module(LATE_IMPORT)

    def why_unpaced(self, *, among_virtual: bool) -> str | None:
        """ZeRO 1 needs peers that own parts of the optimizer."""
        if among_virtual and self.zero:
            return "with zero=1 each rank keeps another part of the optimizer, and virtual peers keep none; use zero=0"
        return None

    def why_not_stepped(self, optimizer: OptimizerSpec) -> str | None:
        """ZeRO 1 makes one flat tensor of a rank's part of all parameters."""
        if self.zero and optimizer.scope is not Scope.ELEMENT:
            return "the optimizer needs whole tensors, and with zero=1 a rank has parts of them; use zero=0"
        return None

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """Initialise DeepSpeed on the default process group. Raises: ValueError for parameters on a GPU."""
        if any(parameter.is_cuda for parameter in model.parameters()):
            raise ValueError("deepspeed runs on CPU tensors and in replay here; on a GPU use ours or torch-ddp")
        self.preload()
        import deepspeed

        _say_where(seat)
        engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=seat.strategy.optimizer.build(model.named_parameters()),
            config=self.config(seat.accumulate, seat.clip_norm),
        )
        return DeepSpeedSession(engine, self.bucket_elements, separates_waiting=not self.overlap_comm)

    @property
    def bucket_elements(self) -> int:
        """DeepSpeed counts a bucket in elements, not in bytes."""
        return max(1, int(self.bucket_mb * 2**20 / BYTES_AN_ELEMENT)) if self.bucket_mb else DEFAULT_BUCKET_ELEMENTS

    def config(self, accumulate: int, clip_norm: float | None) -> dict[str, Any]:
        """What `deepspeed.initialize` is told. The batch size is only for DeepSpeed's own statistics."""
        zero = {"stage": self.zero, "reduce_bucket_size": self.bucket_elements, "overlap_comm": self.overlap_comm}
        return {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": accumulate,
            "gradient_clipping": clip_norm or 0.0,
            "zero_optimization": zero if self.zero else {"stage": 0},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "timers": {"throughput": {"enabled": False}},
        }


class DeepSpeedSession(PlainSession):
    """`allreduce_gradients` is the wait, `engine.step()` the update; clipping is the engine's own."""

    def __init__(self, engine: Any, bucket_elements: int, *, separates_waiting: bool) -> None:
        super().__init__(engine, engine.optimizer)
        self.separates_waiting = separates_waiting
        engine.enable_backward_allreduce = False
        self._engine, self._bucket_elements = engine, bucket_elements
        self._reduced = False

    def begin_micro_batch(self, *, last: bool) -> None:
        """Tell the engine whether the step to come is one that updates."""
        super().begin_micro_batch(last=last)
        self._engine.set_gradient_accumulation_boundary(last)

    def backward(self, loss: Tensor) -> None:
        """Backward alone; what it would have reduced is left to `wait`."""
        self._trained.check()
        self._engine.backward(loss, scale_wrt_gas=False)  # the loop has divided the loss already
        self._due, self._reduced = self._last, False

    def wait(self) -> None:
        """All-reduce the gradients, synchronously, once per step."""
        if self._due and not self._reduced:
            self._engine.allreduce_gradients(bucket_size=self._bucket_elements)
            self._reduced = True

    def update(self) -> None:
        """Step, with stage 1's all-gather of parameters inside."""
        if self._due:
            self.wait()
            self._engine.step()
            self._due = False

    def close(self) -> None:
        """Free the engine's buffers and hooks."""
        self._engine.destroy()


def _say_where(seat: RankSeat) -> None:
    """DeepSpeed takes the process group that is there, but insists on what its launcher would have set."""
    os.environ.pop("OMPI_COMM_WORLD_LOCAL_RANK", None)
    os.environ.update(RANK=str(seat.rank), WORLD_SIZE=str(seat.world), LOCAL_RANK="0")
    os.environ.update(MASTER_ADDR=seat.host.address, MASTER_PORT="0")
