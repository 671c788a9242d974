"""Carries out primitives on torch.distributed process groups.

A group a lane: messages that are in flight together never share a group, so the rounds of one
cannot be taken for the rounds of another, whatever the timing on other ranks. Control messages
have a group of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Protocol

import torch
import torch.distributed as dist

from baselines.api import AllGather, AllReduce, Broadcast, Gather, Payload, Primitive, Shift

Done = Callable[[Payload | Exception], None]
CONTROL = -1


class Transport(Protocol):
    """Starts a primitive on a lane; `done` is called from any thread with its answer."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def start(self, primitive: Primitive, lane: int, done: Done) -> None: ...

    def close(self) -> None: ...


class ProcessGroupTransport:
    """Primitives on gloo (CPU) or NCCL (GPU) groups made from the default group.

    Raises: RuntimeError from torch when a peer is gone; it reaches `done`.
    """

    def __init__(self, num_lanes: int, timeout_s: float = 120.0) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        timeout = timedelta(seconds=timeout_s)
        self._groups = {lane: dist.new_group(timeout=timeout) for lane in range(num_lanes)}
        self._groups[CONTROL] = dist.new_group(timeout=timeout, backend="gloo")
        self._waiting = ThreadPoolExecutor(max_workers=max(1, num_lanes), thread_name_prefix="shift")

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        group = self._groups[lane]
        match primitive:
            case AllReduce(tensor):
                self._then(dist.all_reduce(tensor, group=group, async_op=True), (tensor,), done)
            case AllGather(tensor):
                parts = tuple(torch.empty_like(tensor) for _ in range(self.world))
                self._then(dist.all_gather(list(parts), tensor, group=group, async_op=True), parts, done)
            case Gather(tensor):
                parts = tuple(torch.empty_like(tensor) for _ in range(self.world)) if self.rank == 0 else ()
                into = list(parts) if self.rank == 0 else None
                self._then(dist.gather(tensor, into, dst=0, group=group, async_op=True), parts, done)
            case Broadcast(tensor):
                self._then(dist.broadcast(tensor, src=0, group=group, async_op=True), (tensor,), done)
            case Shift(tensor, into):
                self._waiting.submit(self._shift, tensor, into, group, done)

    def _then(self, work: dist.Work | None, answer: Payload, done: Done) -> None:
        assert work is not None, "this rank is not part of its own group"

        def finish(future: torch.futures.Future[object]) -> None:
            try:
                future.value()
            except Exception as error:  # reaches the loop through the engine
                done(error)
            else:
                done(answer)

        work.get_future().add_done_callback(finish)

    def _shift(self, tensor: torch.Tensor, into: torch.Tensor, group: dist.ProcessGroup, done: Done) -> None:
        try:
            send = dist.isend(tensor, (self.rank + 1) % self.world, group=group)
            receive = dist.irecv(into, (self.rank - 1) % self.world, group=group)
            for work in (send, receive):
                assert work is not None
                work.wait()
        except Exception as error:
            done(error)
        else:
            done((into,))

    def close(self) -> None:
        self._waiting.shutdown(wait=True)
