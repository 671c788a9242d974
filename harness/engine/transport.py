"""Carries out primitives on torch.distributed process groups.

A group per lane: messages that are in flight together never share a group, so the rounds of one
cannot be taken for the rounds of another, whatever the timing on other ranks. Messages of one round
each, begun in one order by all ranks, may share one. Control messages have a group of their own.
Where one thread begins everything, the default group carries it all, as it does for torch's DDP.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions, GatherOptions

from baselines.api import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Payload,
    Primitive,
    Serve,
    Transfer,
    UpdatePoint,
)
from baselines.strategy import Strategy
from crossover.arbiter.scheduling import short_slices
from fabric.paced import PACED
from harness.paced.carried import CarriedGroup
from harness.paced.pacing import Pacing
from models.workload import Device

Done = Callable[[Payload | Exception], None]
CONTROL = -1
WITH_GPU = "cpu:gloo,cuda:nccl"  # as torch names such a group's backend
# As torch makes them: to return at once, and with rank 0 as the root.
_SUM, _GATHER_ALL, _GATHER, _BROADCAST = AllreduceOptions(), AllgatherOptions(), GatherOptions(), BroadcastOptions()
GLOO_AT_ONCE = 2  # operations of one group that gloo carries out side by side; the others wait in their order


def may_queue(strategy: Strategy) -> bool:
    """Whether its messages can wait in a library: one sum each, in an order known beforehand, as many side by side as
    gloo has, and nobody waits for one of them alone. A layer that does could not look past an older one under way."""
    waits_for_all = strategy.update_point is UpdatePoint.AFTER_ALL
    return waits_for_all and strategy.sums_in_known_order and strategy.ordering.depth == GLOO_AT_ONCE


def backends_for(devices: Collection[Device]) -> str:
    """The backends of a process group for jobs on `devices`: gloo for CPU tensors, NCCL for those on a GPU."""
    return WITH_GPU if Device.CUDA in devices else "gloo"


class Transport(Protocol):
    """Starts a primitive on a lane; `done` is called from any thread with its answer."""

    @property
    def rank(self) -> int:
        """This process among the ranks, from 0."""

    @property
    def world(self) -> int:
        """How many ranks there are, servers included."""

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        """Begin `primitive` and return. A lane carries one primitive at a time; every rank starts the same ones on it
        in the same order."""

    def close(self) -> None:
        """Free connections and threads, once nothing is under way."""


class HeldByLibrary(Protocol):
    """An operation that the library holds, as `torch.distributed.Work`."""

    def is_completed(self) -> bool:
        """Whether it has ended, well or not; does not block."""

    def wait(self) -> bool:
        """Block until it has ended. Raises: RuntimeError from torch if a peer is gone."""


@runtime_checkable
class QueuesSums(Protocol):
    """A transport that takes sums before those ahead of them are complete, and is asked for their ends."""

    @property
    def queues_sums(self) -> bool:
        """Whether its library carries them out in the order of their starts, a few of them side by side at most."""
        ...

    def in_stream(self, tensor: torch.Tensor) -> bool:
        """Whether the wait for a sum of `tensor` holds up the present stream of a GPU, and returns at once."""
        ...

    def queue(self, tensor: torch.Tensor) -> HeldByLibrary:
        """Begin an all-reduce of `tensor`, in place, behind those that were begun before."""
        ...


class ProcessGroupTransport:
    """Primitives on groups made from the default group: gloo (CPU) or NCCL (GPU), or `paced` for both.

    A GPU's primitive goes after the present stream's work, and that stream's later work after it;
    `done` is called when the device has really done it (run on one GPU, not yet on several). With `ranks` the groups
    are of these alone, ascending, which all make them; `rank` counts among them. `in_time`: the library's threads get
    ahead of computation, which negotiated messages need and which holds computation up. `in_order`: all ranks start the
    primitives of all lanes in one order, so lanes share a group, which carries the next one as soon as it has carried
    one. `by_one_thread`: moreover only one thread at a time starts them, so sums may queue up in the library. On gloo
    there is one group for everything then, the default one where all ranks take part: a group has a thread that wakes a
    hundred times per second, used or not, and computation makes way for it. Tensors are `size_scale` times smaller than
    what they stand for; rounds of control are not, and take a paced link for so much less.
    Raises: RuntimeError from torch when a peer is gone; it reaches `done`.
    """

    def __init__(
        self,
        num_lanes: int,
        timeout_s: float = 120.0,
        *,
        ranks: Sequence[int] | None = None,
        in_time: bool = True,
        in_order: bool = False,
        by_one_thread: bool = False,
        size_scale: int = 1,
    ) -> None:
        self._ranks = tuple(range(dist.get_world_size()) if ranks is None else ranks)
        self.rank, self.world = self._ranks.index(dist.get_rank()), len(self._ranks)
        timeout = timedelta(seconds=timeout_s)
        # gloo carries out two operations of a group at once; NCCL and a paced link one, and leave no pause behind it.
        self.queues_sums = by_one_thread and dist.get_backend() in (dist.Backend.GLOO, WITH_GPU, PACED)
        with short_slices() if in_time else nullcontext():
            self._is_paced = dist.get_backend() == PACED
            # gloo's threads are made here and inherit this thread's scheduling.
            if by_one_thread and dist.get_backend() == dist.Backend.GLOO:
                own = [_whole() if ranks is None else self._new_group(ranks, timeout)]
                control = own[0]
            else:
                own = [self._new_group(ranks, timeout) for _ in range(1 if in_order else num_lanes)]
                control = self._control_group(ranks, timeout, size_scale)
        self._groups = {CONTROL: control} | {lane: own[lane % len(own)] for lane in range(num_lanes)}
        # A transfer has no future to be told by, so a thread waits for it; one per lane, since each lane has one under
        # way.
        self._waiting = ThreadPoolExecutor(max_workers=max(1, num_lanes), thread_name_prefix="transfer")

    def _control_group(self, ranks: Sequence[int] | None, timeout: timedelta, size_scale: int) -> dist.ProcessGroup:
        if not self._is_paced:
            return self._new_group(ranks, timeout, "gloo")
        whole = _whole()
        assert isinstance(whole, CarriedGroup), "a paced link without its group"
        return self._new_group(ranks, timeout, PACED, whole.pacing.at_full_size(size_scale))

    def _new_group(
        self, ranks: Sequence[int] | None, timeout: timedelta, backend: str | None = None, options: Pacing | None = None
    ) -> dist.ProcessGroup:
        given = None if ranks is None else list(ranks)
        # Where not every rank takes part, those that do must not wait for the others.
        alone = given is not None
        group: dist.ProcessGroup = dist.new_group(given, timeout, backend, options, use_local_synchronization=alone)
        return group

    @classmethod
    def of(
        cls,
        strategy: Strategy,
        *,
        ranks: Sequence[int] | None = None,
        size_scale: int = 1,
        shares_link: bool = False,
    ) -> ProcessGroupTransport:
        """With the lanes that the messages of `strategy` need; with `shares_link` other threads start them too."""
        return cls(
            strategy.ordering.depth,
            ranks=ranks,
            in_time=not strategy.sums_in_known_order,
            in_order=strategy.sums_one_by_one,
            by_one_thread=may_queue(strategy) and not shares_link,
            size_scale=size_scale,
        )

    def queue(self, tensor: torch.Tensor) -> HeldByLibrary:
        """All queued sums share lane 0's group, which keeps their order over ranks."""
        work: dist.Work = self._groups[0].allreduce([tensor], _SUM)
        return work

    def in_stream(self, tensor: torch.Tensor) -> bool:
        """NCCL's is; a paced link is no stream."""
        return tensor.is_cuda and not self._is_paced

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        """Begin `primitive` on the lane's group; `done` is called by a thread of the library, or of this transport."""
        group = self._groups[lane]
        # The group's own methods, as DDP calls them: what torch's functions add costs a third of a small message.
        match primitive:
            case AllReduce(tensor):
                self._then(group.allreduce([tensor], _SUM), (tensor,), done)
            case AllGather(tensor):
                parts = tuple(torch.empty_like(tensor) for _ in range(self.world))
                self._then(group.allgather([list(parts)], [tensor], _GATHER_ALL), parts, done)
            case Gather(tensor):
                parts = tuple(torch.empty_like(tensor) for _ in range(self.world)) if self.rank == 0 else ()
                into = [list(parts)] if self.rank == 0 else []
                self._then(group.gather(into, [tensor], _GATHER), parts, done)
            case Broadcast(tensor):
                self._then(group.broadcast([tensor], _BROADCAST), (tensor,), done)
            case AllToAll(parts, sizes):
                self._all_to_all(parts, sizes, group, done)
            # A rank that sits the round out must not take a thread for it.
            case Transfer(tensor=None):
                done(())
            case Transfer(tensor=torch.Tensor(is_cuda=True)) if not self._is_paced:
                self._transfer_on_device(primitive, group, done)
            case Transfer():
                self._waiting.submit(self._transfer, primitive, group, done)
            case Serve():
                raise AssertionError("the engine serves by itself, nothing of it travels")

    def _then(self, work: dist.Work, answer: Payload, done: Done) -> None:
        if answer and self.in_stream(answer[0]):
            self._then_on_device([work], answer, done)
            return

        def finish(future: torch.futures.Future[object]) -> None:
            try:
                # Raises what went wrong on this rank or a peer; the future alone would keep it to itself.
                future.value()
            except Exception as error:  # noqa: BLE001  reaches the loop through the engine
                done(error)
            else:
                done(answer)

        work.get_future().add_done_callback(finish)

    def _then_on_device(self, works: Sequence[dist.Work], answer: Payload, done: Done) -> None:
        for work in works:
            work.wait()  # NCCL: the present stream waits, this thread does not
        landed = torch.cuda.Event(blocking=True)
        landed.record()
        self._waiting.submit(_tell, landed, answer, done)

    def _all_to_all(
        self, parts: Sequence[torch.Tensor], sizes: Sequence[int], group: dist.ProcessGroup, done: Done
    ) -> None:
        """As bytes: gloo does not move every number format."""
        kind = parts[0].dtype
        sent = torch.cat([part.view(-1) for part in parts]).view(torch.uint8)
        received = torch.empty(sum(sizes) * kind.itemsize, dtype=torch.uint8, device=sent.device)
        work = dist.all_to_all_single(
            received,
            sent,
            [size * kind.itemsize for size in sizes],
            [part.numel() * kind.itemsize for part in parts],
            group=group,
            async_op=True,
        )
        self._then(work, received.view(kind).split(list(sizes)), done)

    def _peer(self, rank: int | None) -> int:
        """A rank of this transport as torch numbers it."""
        assert rank is not None, "a transfer that sends or receives names its peer"
        return self._ranks[rank]

    def _transfer(self, transfer: Transfer, group: dist.ProcessGroup, done: Done) -> None:
        try:
            # Both ways are begun before either is waited for: neighbours in a ring send at the same time.
            works = []
            if transfer.send is not None:
                works.append(dist.isend(transfer.send, self._peer(transfer.to), group=group))
            if transfer.into is not None:
                works.append(dist.irecv(transfer.into, self._peer(transfer.source), group=group))
            for work in works:
                assert work is not None
                work.wait()
        except Exception as error:  # noqa: BLE001  likewise
            done(error)
        else:
            done(_answer(transfer))

    def _transfer_on_device(self, transfer: Transfer, group: dist.ProcessGroup, done: Done) -> None:
        """Both ways as one operation: NCCL would carry them out in turn, and a ring of senders never ends."""
        ways = []
        if transfer.send is not None:
            ways.append(dist.P2POp(dist.isend, transfer.send, self._peer(transfer.to), group))
        if transfer.into is not None:
            ways.append(dist.P2POp(dist.irecv, transfer.into, self._peer(transfer.source), group))
        self._then_on_device(dist.batch_isend_irecv(ways), _answer(transfer), done)

    def close(self) -> None:
        """Wait for transfers under way and end their threads; the groups end with the default group."""
        self._waiting.shutdown(wait=True)


def _whole() -> dist.ProcessGroup:
    assert dist.group.WORLD is not None, "a transport is made once the default group is there"
    return dist.group.WORLD


def _answer(transfer: Transfer) -> Payload:
    return () if transfer.into is None else (transfer.into,)


def _tell(landed: torch.cuda.Event, answer: Payload, done: Done) -> None:
    """Wait for the device on a thread that has nothing else to do."""
    try:
        landed.synchronize()
    except RuntimeError as error:
        done(error)
    else:
        done(answer)
