"""A rank of a pipeline as a process: its requests over torch.distributed, point to point and by sums over groups.

`init_process_group` (gloo) has been called, with as many ranks as the job's layout has. Messages between two ranks
carry a tag, so that they may arrive in any order; a send is held until it is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines.parallelism.api import ParallelismError
from harness.parallel.pipeline import PipelineJob, PipelineRanks, open_ranks
from harness.parallel.rank_program import ReceiveFrom, Request, SegmentTurns, SendTo
from harness.parallel.stages import MicroBatch

_TAGS = 1 << 30  # gloo's tags are 32 bits


class PipelineProcess:
    """This process's rank of `job`. Raises: ParallelismError if the world is not the job's."""

    def __init__(
        self, job: PipelineJob, model: nn.Module, data: Sequence[MicroBatch], turns: SegmentTurns | None = None
    ) -> None:
        world = job.layout().world
        if dist.get_world_size() != world:
            raise ParallelismError(f"{dist.get_world_size()} processes for {world} ranks; start {world}")
        self.opened: PipelineRanks = open_ranks(job, model, data, only=dist.get_rank(), turns=turns)
        self.num_sent_bytes = 0
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._make_groups(job)

    def run(self, data: Sequence[MicroBatch]) -> float:
        """The program once. Answer: this rank's share of the loss."""
        (rank,) = self.opened.ranks
        for worker in self.opened.workers:
            worker.losses.clear()
        sends: list[tuple[dist.Work, Tensor]] = []
        run = rank.run(data)
        answer: Tensor | None = None
        while True:
            try:
                request = run.send(answer)
            except StopIteration:
                break
            answer = self._answer(request, sends)
            # A tensor that is being sent must stay alive, and only until then.
            sends = [entry for entry in sends if not entry[0].is_completed()]
        for work, _ in sends:
            work.wait()
        if self.opened.job.schedule.synchronous:
            for worker in self.opened.workers:
                worker.next_step()
        return sum(loss for worker in self.opened.workers for loss in worker.losses.values())

    def _answer(self, request: Request, sends: list[tuple[dist.Work, Tensor]]) -> Tensor | None:
        if isinstance(request, SendTo):
            work = dist.isend(request.tensor, request.rank, tag=_number(request.tag))
            assert work is not None
            sends.append((work, request.tensor))
            self.num_sent_bytes += request.tensor.nbytes
            return None
        if isinstance(request, ReceiveFrom):
            received = torch.empty(request.shape, dtype=self._dtype())
            dist.recv(received, request.rank, tag=_number(request.tag))
            return received
        total = request.tensor.clone()
        dist.all_reduce(total, group=self._groups[request.ranks])
        return total

    def _dtype(self) -> torch.dtype:
        worker = self.opened.workers[0]
        return next(worker.stage.module.parameters()).dtype

    def _make_groups(self, job: PipelineJob) -> None:
        """Every process makes every group, in the same order, as torch.distributed wants it."""
        layout, wanted = job.layout(), set()
        mine = {
            tuple(sorted({rank for stage in stages for rank in layout.ranks_of(self.opened.program.rank_of(stage))}))
            for worker in self.opened.workers
            for stages in worker.stage.tied.values()
        }
        # Only a group's members know their tied weights, but all processes must make all groups.
        everyone: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, sorted(mine))
        for found in everyone:
            assert isinstance(found, list)
            wanted |= set(found)
        wanted |= {layout.ranks_of(index) for index, count in enumerate(layout.num_replicas) if count > 1}
        for ranks in sorted(wanted):
            group = dist.new_group(list(ranks))
            assert isinstance(group, dist.ProcessGroup)
            self._groups[ranks] = group


def _number(tag: tuple[int, ...]) -> int:
    """A message's tag as a number: stable over processes, and different for all messages that can be under way."""
    digest = hashlib.blake2b(repr(tag).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _TAGS
