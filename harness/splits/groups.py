"""Ranks that combine tensors differentiably: threads of one process in lockstep, or processes with torch.distributed.

Both follow one rule for gradients (`baselines.parallelism.operators`): a collective's backward is its transpose.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from baselines.parallelism.operators import Combination, JoinedParts, RankPart, SumOfParts, WithHalo
from harness.trace import Recorder

Result = TypeVar("Result")


class RankGroup(Protocol):
    """This rank's access to all ranks."""

    @property
    def part(self) -> RankPart: ...

    def combine(self, combination: Combination) -> Tensor:
        """Every rank asks in the same order."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Gradients of the sum over ranks of `loss`, divided by their number."""
        ...

    def meet(self) -> None:
        """Wait until every rank is here."""
        ...


def run_operator(group: RankGroup, run: Generator[Combination, Tensor, Result]) -> Result:
    """Drive an operator to its result."""
    try:
        combination = next(run)
        while True:
            combination = run.send(group.combine(combination))
    except StopIteration as end:
        result: Result = end.value
        return result


class LockstepGroup:
    """One of P ranks that are threads of this process, on one autograd graph. Sums are in order of ranks."""

    def __init__(self, part: RankPart, shared: _Meeting) -> None:
        self._part = part
        self._shared = shared

    @property
    def part(self) -> RankPart:
        return self._part

    def combine(self, combination: Combination) -> Tensor:
        everyone = self._shared.exchange(self._part.rank, combination)
        tensors: list[Tensor] = [other.tensor for other in everyone]
        if isinstance(combination, SumOfParts):
            total = tensors[0]
            for tensor in tensors[1:]:
                total = total + tensor
            return total
        if isinstance(combination, JoinedParts):
            return torch.cat(tensors, combination.dim)
        return _with_halo(combination, self._part, tensors)

    def backward(self, loss: Tensor) -> None:
        losses = self._shared.exchange(self._part.rank, loss)
        if self._part.rank == 0:
            torch.stack(losses).sum().div(self._part.world).backward()
        self.meet()  # nobody goes on before gradients are there

    def meet(self) -> None:
        self._shared.exchange(self._part.rank, None)


class _Meeting:
    """Where threads swap values; a thread that fails frees the others."""

    def __init__(self, world: int, timeout_s: float) -> None:
        self._barrier = threading.Barrier(world, timeout=timeout_s)
        self._values: list[Any] = [None] * world

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._values[rank] = value
        self._barrier.wait()
        found = list(self._values)
        self._barrier.wait()
        return found

    def abort(self) -> None:
        self._barrier.abort()


def run_ranks(world: int, rank_main: Callable[[RankGroup], Result], timeout_s: float = 120.0) -> list[Result]:
    """Run `rank_main` on `world` ranks in lockstep; answer: their results. Raises: what a rank raised first."""
    meeting = _Meeting(world, timeout_s)
    results: list[Any] = [None] * world
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = rank_main(LockstepGroup(RankPart(rank, world), meeting))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the caller's thread
            # A broken barrier is the echo of another rank's error.
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            # Else the other threads would wait at the barrier until its time is up.
            meeting.abort()

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


class ProcessGroup:
    """This process's rank of torch.distributed's default group. It counts what it sends, and notes when it waits."""

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.num_messages, self.num_sent_bytes = 0, 0.0
        self._recorder = recorder or Recorder()

    @property
    def part(self) -> RankPart:
        return RankPart(dist.get_rank(), dist.get_world_size())

    def combine(self, combination: Combination) -> Tensor:
        if isinstance(combination, SumOfParts):
            total: Tensor = _Sum.apply(combination.tensor, self)  # type: ignore[no-untyped-call]
            return total
        if isinstance(combination, JoinedParts):
            joined: Tensor = _Join.apply(combination.tensor, combination.dim, self)  # type: ignore[no-untyped-call]
            return joined
        stacked: Tensor = _Join.apply(combination.tensor.unsqueeze(0), 0, self)  # type: ignore[no-untyped-call]
        return _with_halo(combination, self.part, stacked.unbind(0))

    def backward(self, loss: Tensor) -> None:
        (loss / self.part.world).backward()

    def meet(self) -> None:
        dist.barrier()

    def summed(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, a tensor of its own."""
        total = tensor.contiguous().clone()
        with self._sending(2 * total.nbytes):
            dist.all_reduce(total)
        return total

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's."""
        parts = [torch.empty_like(tensor) for _ in range(self.part.world)]
        with self._sending(self.part.world * tensor.nbytes):
            dist.all_gather(parts, tensor.contiguous())
        return parts

    @contextmanager
    def _sending(self, ring_bytes: float) -> Iterator[None]:
        """Around a ring a rank sends all of `ring_bytes` but its own part."""
        self.num_messages += 1
        self.num_sent_bytes += ring_bytes * (1 - 1 / self.part.world)
        with self._recorder.span("loop", "wait"):
            yield


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return group.summed(tensor)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None]:
        group: ProcessGroup = ctx.group
        return group.summed(upstream[0]), None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, group: ProcessGroup) -> Tensor:
        ctx.dim, ctx.extent, ctx.group = dim, tensor.shape[dim], group
        return torch.cat(group.gathered(tensor), dim)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        group: ProcessGroup = ctx.group
        own = group.summed(upstream[0]).narrow(ctx.dim, group.part.rank * ctx.extent, ctx.extent)
        return own, None, None


def _with_halo(combination: WithHalo, part: RankPart, tensors: Sequence[Tensor]) -> Tensor:
    own = combination.tensor
    pieces = [own]
    if combination.before:
        edge = tensors[part.rank - 1][:, :, -combination.before :] if part.rank else None
        pieces.insert(0, _rows_like(own, combination.before) if edge is None else edge)
    if combination.after:
        last = part.rank == part.world - 1
        edge = None if last else tensors[part.rank + 1][:, :, : combination.after]
        pieces.append(_rows_like(own, combination.after) if edge is None else edge)
    return torch.cat(pieces, 2)


def _rows_like(x: Tensor, num_rows: int) -> Tensor:
    return x.new_zeros(*x.shape[:2], num_rows, *x.shape[3:])
