"""A rank of a pipeline as a process: its requests over torch.distributed, point to point and by sums over groups.

`init_process_group` (gloo, or paced around it) has been called, with as many ranks as the job's layout has. Messages
between two ranks carry a tag, so that they may arrive in any order; a send is held until it is complete.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from time import perf_counter

import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines.parallelism.api import ParallelismError
from harness.parallel.pipeline import PipelineJob, PipelineRanks, open_ranks
from harness.parallel.rank_program import ReceiveFrom, Request, SegmentTurns, SendTo, SumOver
from harness.parallel.replica_sums import ReplicaSums
from harness.parallel.stages import MicroBatch
from harness.trace import Recorder

_TAGS = 1 << 30  # gloo's tags are 32 bits
_SENDS_PER_STAGE = 8  # that may be under way: what was sent so long before has been received for another to arrive
# Receives that are posted before they are waited for: gloo carries nothing until the receiver has asked for it.
_RECEIVES_AHEAD = 4
# A message that is there within this time was there before: a queue of work filled ahead would not have seen a gap.
_THERE_S = 1e-3


class PipelineProcess:
    """This process's rank of `job`.

    `paused` is told where the device had nothing to do until a message came. Raises: ParallelismError if the world is
    not the job's.
    """

    def __init__(
        self,
        job: PipelineJob,
        model: nn.Module,
        data: Sequence[MicroBatch],
        turns: SegmentTurns | None = None,
        *,
        recorder: Recorder | None = None,
        paused: Callable[[], None] = lambda: None,
    ) -> None:
        world = job.layout().world
        if dist.get_world_size() != world:
            raise ParallelismError(f"{dist.get_world_size()} processes for {world} ranks; start {world}")
        self.opened: PipelineRanks = open_ranks(job, model, data, only=dist.get_rank(), turns=turns)
        self._num_sent_bytes = self._num_messages = 0
        self._recorder, self._paused = recorder or Recorder(), paused
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        self._receives: Iterator[ReceiveFrom] = iter(())  # of this program, which nobody has asked for
        self._posted: dict[ReceiveFrom, tuple[dist.Work, Tensor]] = {}
        self._make_groups(job)
        self._sums = self._replica_sums(job)
        self.opened.ranks[0].sums = self._sums

    @property
    def num_sent_bytes(self) -> float:
        """Payload bytes so far, replicas' sums included."""
        return self._num_sent_bytes + sum(own.num_sent_bytes for own in self._sums.values())

    @property
    def num_messages(self) -> int:
        """Messages so far, likewise."""
        return self._num_messages + sum(own.num_messages for own in self._sums.values())

    def close(self) -> None:
        """End the threads and groups of replicas' sums."""
        for own in self._sums.values():
            own.close()

    @property
    def modules(self) -> dict[int, nn.Module]:
        """Own stages with their newest weights."""
        return {worker.stage.stage: worker.stage.module for worker in self.opened.workers}

    @property
    def held(self) -> tuple[int, int, int]:
        """(most micro-batches whose activations were held, most versions of weights, staleness in updates)."""
        (rank,) = self.opened.ranks
        return rank.peak_stash, rank.peak_versions, max(worker.most_stale for worker in self.opened.workers)

    def run(self, data: Sequence[MicroBatch]) -> dict[int, float]:
        """The program once. Answer: this rank's share of each micro-batch's loss; empty without the last stage."""
        (rank,) = self.opened.ranks
        for worker in self.opened.workers:
            worker.losses.clear()
        sends: deque[tuple[dist.Work, Tensor]] = deque()
        run, self._receives = rank.run(data), rank.receives(data)
        self._post_receives()
        answer: Tensor | None = None
        while True:
            try:
                request = run.send(answer)
            except StopIteration:
                break
            answer = self._answer(request, sends)
            # A tensor that is being sent must stay alive, and not much longer.
            if len(sends) > _SENDS_PER_STAGE * self.opened.program.num_stages:
                sends.popleft()[0].wait()
        for work, _ in sends:
            work.wait()
        if self.opened.job.schedule.synchronous:
            for worker in self.opened.workers:
                worker.next_step()
        return {number: loss for worker in self.opened.workers for number, loss in worker.losses.items()}

    def _answer(self, request: Request, sends: deque[tuple[dist.Work, Tensor]]) -> Tensor | None:
        if isinstance(request, SendTo):
            work = dist.isend(request.tensor, request.rank, tag=_number(request.tag))
            assert work is not None
            sends.append((work, request.tensor))
            self._count(request.tensor.nbytes)
            return None
        start_s = perf_counter()
        with self._recorder.span("loop", "wait"):
            answer = self._receive(request) if isinstance(request, ReceiveFrom) else self._sum(request)
        # In replay the next pass may start no earlier than the message came.
        if perf_counter() - start_s > _THERE_S:
            self._paused()
        return answer

    def _receive(self, request: ReceiveFrom) -> Tensor:
        work, received = self._posted.pop(request)
        self._post_receives()
        work.wait()
        return received

    def _post_receives(self) -> None:
        while len(self._posted) < _RECEIVES_AHEAD and (wanted := next(self._receives, None)) is not None:
            into = torch.empty(wanted.shape, dtype=self._dtype())
            work = dist.irecv(into, wanted.rank, tag=_number(wanted.tag))
            assert work is not None
            self._posted[wanted] = work, into

    def _sum(self, request: SumOver) -> Tensor:
        total, num_ranks = request.tensor.clone(), len(request.ranks)
        dist.all_reduce(total, group=self._groups[request.ranks])
        self._count(round(2 * (num_ranks - 1) / num_ranks * total.nbytes))
        return total

    def _count(self, num_bytes: int) -> None:
        self._num_sent_bytes += num_bytes
        self._num_messages += 1

    def _dtype(self) -> torch.dtype:
        worker = self.opened.workers[0]
        return next(worker.stage.module.parameters()).dtype

    def _replica_sums(self, job: PipelineJob) -> dict[int, ReplicaSums]:
        """Of the stages that have replicas; a stage's ranks make theirs together, stages in ascending order."""
        found = {}
        for worker in sorted(self.opened.workers, key=lambda own: own.stage.stage):
            stage, index = worker.stage, worker.stage.stage
            ranks = job.layout().ranks_of(self.opened.program.rank_of(index))
            own = [p for name, p in stage.module.named_parameters() if stage.names[name] not in stage.tied]
            if job.strategy is not None and len(ranks) > 1 and own:
                found[index] = ReplicaSums(own, ranks, job.strategy, self._recorder, job.seed)
        return found

    def _make_groups(self, job: PipelineJob) -> None:
        """Every process makes every group, in the same order, as torch.distributed wants it."""
        # Every process knows every tied weight, so nobody has to be asked which groups there are.
        layout, program = job.layout(), self.opened.program
        wanted = {layout.ranks_of(index) for index, count in enumerate(layout.num_replicas) if count > 1}
        for stages in self.opened.tied:
            wanted.add(tuple(sorted({rank for stage in stages for rank in layout.ranks_of(program.rank_of(stage))})))
        for ranks in sorted(wanted):
            if len(ranks) > 1:
                group = dist.new_group(list(ranks))
                if isinstance(group, dist.ProcessGroup):  # for others torch gives a number that says so
                    self._groups[ranks] = group


@cache
def _number(tag: tuple[int, ...]) -> int:
    """A message's tag as a number: stable over processes, and different for all messages that can be under way."""
    digest = hashlib.blake2b(repr(tag).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _TAGS
