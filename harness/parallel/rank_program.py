"""What one rank of a pipeline does: a generator of primitives, so that any driver can run it.

A rank is one replica of the stages of one pipeline rank. Replicas of a pipeline rank run the same program, each on its
slice of every micro-batch; what crosses a boundary goes from each replica to those whose slices overlap with its own.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baselines.parallelism.api import Action, Backward, Forward, Recompute, Update
from baselines.parallelism.programs import Crossing, Instruction, PipelineProgram, Receive, Send, gives, wants
from harness.parallel.stage_worker import StageWorker
from harness.parallel.stages import MicroBatch, slice_of


@dataclass(frozen=True, slots=True)
class SendTo:
    """Send `tensor` to a rank; does not wait. Answer: None."""

    rank: int
    tag: tuple[int, ...]
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class ReceiveFrom:
    """Wait for the tensor of `shape` with this tag from a rank. Answer: it."""

    rank: int
    tag: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SumOver:
    """Sum `tensor` over `ranks` (ascending, this one among them), which all ask with the same tag. Answer: the sum."""

    ranks: tuple[int, ...]
    tag: tuple[int, ...]
    tensor: Tensor


Request = SendTo | ReceiveFrom | SumOver
RankRun = Generator[Request, Tensor | None, None]

_SUM, _CROSSING = 0, 1


class SegmentTurns(Protocol):
    """A turn around each compute segment: a pass of a micro-batch on a stage, or an update."""

    def segment(self, action: Action) -> AbstractContextManager[None]: ...


class SumsGradients(Protocol):
    """Sums the gradients of a stage's own weights over its replicas, which all call it in the same order."""

    def sum_gradients(self) -> None:
        """Block until the parameters' gradients are sums."""
        ...


class NoTurns:
    """The device is this job's alone."""

    def segment(self, action: Action) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Where replicas live: those of pipeline rank r are the ranks `first[r]` … `first[r] + num_replicas[r]` − 1."""

    num_replicas: tuple[int, ...]

    @property
    def world(self) -> int:
        return sum(self.num_replicas)

    def ranks_of(self, pipeline_rank: int) -> tuple[int, ...]:
        first = sum(self.num_replicas[:pipeline_rank])
        return tuple(range(first, first + self.num_replicas[pipeline_rank]))

    def seat_of(self, rank: int) -> tuple[int, int]:
        """(pipeline rank, replica)."""
        for pipeline_rank, count in enumerate(self.num_replicas):
            if rank < count:
                return pipeline_rank, rank
            rank -= count
        raise IndexError(rank)


class PipelineRank:
    """One rank: its workers by stage, and what has reached it."""

    def __init__(
        self,
        rank: int,
        layout: RankLayout,
        program: PipelineProgram,
        workers: Mapping[int, StageWorker],
        turns: SegmentTurns | None = None,
    ) -> None:
        self.rank = rank
        self.workers = workers
        self._layout = layout
        self._program = program
        self._pipeline_rank, self._replica = layout.seat_of(rank)
        self._turns = turns or NoTurns()
        self._held: dict[Crossing, Tensor] = {}
        self.peak_stash = self.peak_versions = 0
        self.sums: Mapping[int, SumsGradients] = {}  # of stages whose replicas sum by themselves

    def run(self, data: Sequence[MicroBatch]) -> RankRun:
        """The rank's instructions from first to last. `data` are all micro-batches of the program."""
        for instruction in self._program.ranks[self._pipeline_rank]:
            if isinstance(instruction, Send):
                yield from self._send(instruction.crossing, len(data[instruction.crossing.micro_batch].inputs))
            elif isinstance(instruction, Receive):
                num_samples = len(data[instruction.crossing.micro_batch].inputs)
                self._held[instruction.crossing] = yield from self._receive(instruction.crossing, num_samples)
            elif isinstance(instruction, Update):
                yield from self._update(instruction)
            else:
                with self._turns.segment(instruction):
                    self._pass(instruction, data[instruction.micro_batch])

    def receives(self, data: Sequence[MicroBatch]) -> Iterator[ReceiveFrom]:
        """What `run` will wait for, in that order, for a driver that asks for messages ahead."""
        for instruction in self._program.ranks[self._pipeline_rank]:
            if isinstance(instruction, Receive):
                yield from self._parts_of(instruction.crossing, len(data[instruction.crossing.micro_batch].inputs))

    def _pass(self, action: Instruction, whole: MicroBatch) -> None:
        assert isinstance(action, Forward | Recompute | Backward)
        worker = self.workers[action.stage]
        own = self._own_slice(whole, self._pipeline_rank, self._replica)
        last = action.stage == self._program.num_stages - 1
        before, behind = wants(action, self._program.num_stages), gives(action, self._program.num_stages)
        given = self._held.pop(before) if before else None
        if isinstance(action, Forward):
            made: Tensor | None = worker.forward(action, own.inputs if given is None else given, own if last else None)
        elif isinstance(action, Recompute):
            worker.recompute(action, own if last else None)
            made = None
        else:
            made = worker.backward(action, given)
        if behind:
            assert made is not None
            self._held[behind] = made
        self.peak_stash = max(self.peak_stash, sum(own.num_in_flight for own in self.workers.values()))

    def _update(self, action: Update) -> RankRun:
        worker = self.workers[action.stage]
        gradients = dict(worker.gradients())
        # A tied gradient is summed over all replicas of all its stages at once, all others over the stage's replicas.
        together: dict[tuple[int, ...], dict[str, Tensor]] = {}
        for name, gradient in gradients.items():
            together.setdefault(worker.stage.tied.get(name, (action.stage,)), {})[name] = gradient
        for stages, summed in together.items():
            ranks = {rank for stage in stages for rank in self._layout.ranks_of(self._program.rank_of(stage))}
            if stages == (action.stage,) and action.stage in self.sums:
                self.sums[action.stage].sum_gradients()
            elif len(ranks) > 1:
                yield from _sum_in_place(summed, tuple(sorted(ranks)), (_SUM, action.version, *stages))
        with self._turns.segment(action):
            worker.update(action)
        self.peak_versions = max(self.peak_versions, worker.num_versions)

    def _send(self, crossing: Crossing, num_samples: int) -> RankRun:
        tensor = self._held.pop(crossing)
        for peer, part in self._overlaps(self._receiver(crossing), num_samples):
            own = slice_of(self._replica, self._layout.num_replicas[self._pipeline_rank], num_samples)
            yield SendTo(peer, _tag(crossing), tensor[part.start - own.start : part.stop - own.start].contiguous())

    def _receive(self, crossing: Crossing, num_samples: int) -> Generator[Request, Tensor | None, Tensor]:
        parts = []
        for wanted in self._parts_of(crossing, num_samples):
            received = yield wanted
            assert received is not None
            parts.append(received)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _parts_of(self, crossing: Crossing, num_samples: int) -> Iterator[ReceiveFrom]:
        """What crosses a boundary to this replica, a message from each replica that has some of its samples."""
        any_worker = next(iter(self.workers.values()))
        shape = any_worker.shapes[crossing.boundary]
        for peer, part in self._overlaps(self._sender(crossing), num_samples):
            yield ReceiveFrom(peer, _tag(crossing), (part.stop - part.start, *shape))

    def _overlaps(self, other: int, num_samples: int) -> Iterator[tuple[int, slice]]:
        """Replicas of another pipeline rank whose slices overlap with this one's, in order, and the samples in both."""
        mine = slice_of(self._replica, self._layout.num_replicas[self._pipeline_rank], num_samples)
        for replica, peer in enumerate(self._layout.ranks_of(other)):
            theirs = slice_of(replica, self._layout.num_replicas[other], num_samples)
            start, stop = max(mine.start, theirs.start), min(mine.stop, theirs.stop)
            if start < stop:
                yield peer, slice(start, stop)

    def _receiver(self, crossing: Crossing) -> int:
        return self._program.rank_of(crossing.boundary + (not crossing.is_gradient))

    def _sender(self, crossing: Crossing) -> int:
        return self._program.rank_of(crossing.boundary + crossing.is_gradient)

    def _own_slice(self, whole: MicroBatch, pipeline_rank: int, replica: int) -> MicroBatch:
        part = slice_of(replica, self._layout.num_replicas[pipeline_rank], len(whole.inputs))
        return MicroBatch(whole.inputs[part], whole.targets[part], whole.num_targets)


def _tag(crossing: Crossing) -> tuple[int, ...]:
    return _CROSSING, crossing.boundary, crossing.micro_batch, int(crossing.is_gradient)


def _sum_in_place(gradients: Mapping[str, Tensor], ranks: tuple[int, ...], tag: tuple[int, ...]) -> RankRun:
    """Sum all gradients over ranks as one flat tensor."""
    # Sorted, so that every rank has the same gradient at the same place of the flat tensor.
    names = sorted(gradients)
    total = yield SumOver(ranks, tag, torch.cat([gradients[name].flatten() for name in names]))
    assert total is not None
    for name, part in zip(names, total.split([gradients[name].numel() for name in names]), strict=True):
        gradients[name].copy_(part.view_as(gradients[name]))
