"""torch.distributed.pipelining as itself: its stages, its schedules, its messages.

Our job's stages are cut and its data are fed in the same way; passes, messages and their order are torch's (gpipe:
`ScheduleGPipe`, dapple: `Schedule1F1B`, interleaved: `ScheduleInterleaved1F1B`, and with `zero_bubble` the interleaved
zero-bubble schedule, which computes gradients of weights where a rank would wait). torch sums no tied weights, and has
no replicas of a stage here.

A gradient that is not contiguous (a recurrent layer's) is copied before it travels: torch 2.13 hands it to gloo as it
is, which refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines.parallelism.api import ParallelismError, Update
from baselines.text import read_call
from harness.parallel.sessions import PipelineSeat, PipelineSession
from harness.parallel.stages import MicroBatch, cut
from harness.systems.api import RankSeat, Session, SystemCard

_SCHEDULES = {"gpipe": "GPipe", "dapple": "1F1B", "interleaved": "Interleaved1F1B"}
_ZERO_BUBBLE = "InterleavedZeroBubble"


@dataclass(frozen=True, slots=True)
class TorchPipelining:
    card: ClassVar[SystemCard] = SystemCard(
        name="torch-pipelining",
        summary="torch.distributed.pipelining: GPipe, 1F1B, interleaved, zero-bubble",
        source="Reed et al., torch.distributed.pipelining (PiPPy), PyTorch 2.4 and later",
    )
    zero_bubble: bool = False

    def why_unavailable(self) -> str | None:
        """Not without torch.distributed."""
        if not dist.is_available():
            return "torch.distributed is not in this torch; install a build that has it"
        return None

    def why_unpaced(self, *, among_virtual: bool) -> str | None:
        """Its messages go through torch's group, as the paced backend wants; to real neighbours alone."""
        return "a stage needs a real neighbour; use num_virtual=0" if among_virtual else None

    def why_unfit_for(self, schedule: str) -> str | None:
        """The reason why torch has no such schedule, or None."""
        name, arguments = read_call(schedule)
        if name not in _SCHEDULES or arguments.get("recompute") or "policy" in arguments:
            return f"it has no schedule {schedule!r}; use one of {', '.join(_SCHEDULES)}, without settings"
        if self.zero_bubble and name != "interleaved":
            return f"zero_bubble goes with interleaved, not with {schedule!r}"
        return None

    def prepare(self, model: nn.Module, seat: RankSeat) -> Session:
        """Raises: ParallelismError; it has no replicas to train."""
        raise ParallelismError("torch-pipelining trains pipelines alone; give the job pipelining")

    def open_pipeline(self, seat: PipelineSeat) -> PipelineSession:
        """Cut the network as ours is cut, and give torch the stages. Raises: ParallelismError."""
        name, _ = read_call(seat.job.schedule.card.name)
        return TorchPipelineSession(seat, _ZERO_BUBBLE if self.zero_bubble else _SCHEDULES[name])


class TorchPipelineSession:
    """One rank under torch's schedule. What it sends, and what it holds, torch does not tell."""

    def __init__(self, seat: PipelineSeat, schedule: str) -> None:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

        job, rank = seat.job, dist.get_rank()
        if job.layout().world != job.num_ranks:
            raise ParallelismError("torch-pipelining has no replicas of a stage; give each one replica, or use ours")
        stages = cut(job.network, seat.model, job.stages, seat.data[0].inputs[:1])
        # Its weights would drift apart without any error.
        if any(stage.tied for stage in stages):
            raise ParallelismError("torch-pipelining sums no tied weights; use ours, or a network without them")
        own = {index: stages[index] for index in range(rank, len(stages), job.num_ranks)}
        self.modules: Mapping[int, nn.Module] = {index: stage.module for index, stage in own.items()}
        self.num_sent_bytes, self.num_messages = 0.0, 0
        self.held = (0, 0, 0)
        self._meter, self._loss, self._num_targets = seat.meter, stages[-1].loss, 1
        self._is_first, self._is_last = 0 in own, len(stages) - 1 in own
        wrapped = [
            PipelineStage(_Contiguous(stage.module), index, len(stages), torch.device("cpu"))
            for index, stage in own.items()
        ]
        kind: Any = get_schedule_class(schedule)
        # torch's schedules of one stage per rank take it bare, the others a list.
        several = issubclass(kind, PipelineScheduleMulti)
        self._schedule = kind(
            wrapped if several else wrapped[0], len(seat.data), loss_fn=self._loss_of, scale_grads=False
        )
        self._optimizer = job.make_optimizer(
            (stage.names[name], value) for stage in own.values() for name, value in stage.module.named_parameters()
        )

    def run(self, data: Sequence[MicroBatch]) -> dict[int, float]:
        """A step by torch's schedule and the optimizer's; on the last stage the micro-batches' losses."""
        self._num_targets = data[0].num_targets
        losses: list[Tensor] = []
        inputs = (torch.cat([own.inputs for own in data]),) if self._is_first else ()
        targets = {"target": torch.cat([own.targets for own in data]), "losses": losses} if self._is_last else {}
        self._schedule.step(*inputs, **targets)
        for index in self.modules:
            with self._meter.segment(Update(index, 1, len(data))):
                # One optimizer for all of the rank's stages; the others' segments only count for the step's end.
                if index == max(self.modules):
                    self._optimizer.step()
                    self._optimizer.zero_grad()
        return {number: float(loss.detach()) for number, loss in enumerate(losses)}

    def close(self) -> None:
        """Nothing to free."""

    def _loss_of(self, output: Tensor, targets: Tensor) -> Tensor:
        return self._loss(output, MicroBatch(targets, targets, self._num_targets))


class _Contiguous(nn.Module):
    """A stage whose output, and whose input's gradient, are contiguous."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._has_shapes = False

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            x = _ContiguousGradient.apply(x)  # type: ignore[no-untyped-call]
        # torch's first forward only asks for shapes, on what memory happens to hold: no statistics may learn from it.
        before = [] if self._has_shapes else [buffer.clone() for buffer in self.module.buffers()]
        out: Tensor = self.module(x)
        for buffer, value in zip(self.module.buffers(), before, strict=False):
            buffer.data.copy_(value)  # unseen by autograd, which keeps the buffers for backward
        self._has_shapes = True
        return out.contiguous()


class _ContiguousGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        return upstream[0].contiguous()
