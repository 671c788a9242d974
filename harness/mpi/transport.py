"""Carries out primitives over MPI (mpi4py), on CPU tensors.

A communicator a lane, as torch's transport has a group a lane: what is in flight together never shares one. All
operations are non-blocking, and one thread tests them, since MPI makes progress inside its calls alone. It pauses
between two looks: a thread that spins would take a core from training.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any

import torch
from torch import Tensor

from baselines.api import AllGather, AllReduce, AllToAll, Broadcast, Gather, Payload, Primitive, Serve, Transfer
from harness.engine.transport import CONTROL, Done
from harness.mpi.library import MpiError, load_mpi

# Shorter pauses take processor time from training, longer ones add to every small message.
LOOK_EVERY_S = 50e-6
SUMMED = (torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@dataclass(slots=True, eq=False)  # each is itself alone: ended requests are all equal, and arrays cannot be compared
class _Pending:
    """Requests under way, the arrays that they use, and what follows."""

    requests: list[Any]
    buffers: Sequence[Any]
    answer: Callable[[], Payload]
    done: Done


class MpiTransport:
    """Primitives over `MPI.COMM_WORLD`; every rank must make one with equal `num_lanes`.

    Raises: MpiError if mpi4py or an MPI is missing, or the MPI was not started for several threads.
    """

    def __init__(self, num_lanes: int) -> None:
        self._mpi = load_mpi()
        if self._mpi.Query_thread() < self._mpi.THREAD_MULTIPLE:
            raise MpiError("this MPI serves one thread at a time; start it with MPI_THREAD_MULTIPLE")
        world = self._mpi.COMM_WORLD
        self.rank, self.world = world.Get_rank(), world.Get_size()
        # Collective and in this order on all ranks.
        self._lanes = {lane: world.Dup() for lane in (CONTROL, *range(num_lanes))}
        self._changed = threading.Condition()
        self._pending: list[_Pending] = []
        self._closed = False
        self._thread = threading.Thread(target=self._progress, name="mpi", daemon=True)
        self._thread.start()

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        """Begin `primitive` on the lane's communicator; `done` is called by the thread that tests."""
        try:
            begun = self._begin(primitive, self._lanes[lane], done)
        except (MpiError, self._mpi.Exception) as error:
            done(error)
            return
        with self._changed:
            self._pending.append(begun)
            self._changed.notify()

    def _begin(self, primitive: Primitive, lane: Any, done: Done) -> _Pending:
        match primitive:
            case AllReduce(tensor):
                if tensor.dtype not in SUMMED:
                    raise MpiError(f"MPI sums no {tensor.dtype}; use a compressor whose payloads are gathered, or gloo")
                array = tensor.numpy()
                request = lane.Iallreduce(self._mpi.IN_PLACE, array, op=self._mpi.SUM)
                return _Pending([request], (array,), lambda: (tensor,), done)
            case AllGather(tensor):
                return self._gathered(tensor, done, lambda own, whole: lane.Iallgather(own, whole))
            case Gather(tensor):
                if self.rank != 0:
                    own = _raw(tensor)
                    return _Pending([lane.Igather(own, None, root=0)], (own,), tuple, done)
                return self._gathered(tensor, done, lambda own, whole: lane.Igather(own, whole, root=0))
            case Broadcast(tensor):
                raw = _raw(tensor)
                return _Pending([lane.Ibcast(raw, root=0)], (raw,), lambda: (tensor,), done)
            case Transfer():
                return _transfer(primitive, lane, done)
            case AllToAll(parts, sizes):
                return _all_to_all(parts, sizes, lane, done)
            case Serve():
                raise AssertionError("the engine serves by itself, nothing of it travels")

    def _gathered(self, tensor: Tensor, done: Done, begin: Callable[[Any, Any], Any]) -> _Pending:
        parts = torch.empty((self.world, tensor.numel()), dtype=tensor.dtype)
        own, whole = _raw(tensor), _raw(parts)
        return _Pending([begin(own, whole)], (own, whole), lambda: tuple(parts.unbind()), done)

    def _progress(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                # A copy: other threads start operations while this one tests.
                pending = list(self._pending)
            if not pending:
                return
            answers = [(own, answer) for own in pending if (answer := self._look(own)) is not None]
            ended = [own for own, _ in answers]
            with self._changed:
                self._pending = [own for own in self._pending if own not in ended]
            for own, answer in answers:
                # Outside the lock: what follows may start the next primitive at once.
                own.done(answer)
            if not ended:
                sleep(LOOK_EVERY_S)

    def _look(self, own: _Pending) -> Payload | Exception | None:
        """What it has ended with; None while it is under way."""
        try:
            return own.answer() if self._mpi.Request.Testall(own.requests) else None
        except self._mpi.Exception as error:  # such as a peer that is gone; the others are still to be looked at
            failed: Exception = error
            return failed

    def close(self) -> None:
        """Free the communicators, once nothing is under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        for lane in self._lanes.values():
            lane.Free()


def _raw(tensor: Tensor) -> Any:
    """Its memory as bytes, which any number format has."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy() if tensor.numel() else torch.zeros(0).numpy()


def _transfer(transfer: Transfer, lane: Any, done: Done) -> _Pending:
    buffers = [None if tensor is None else _raw(tensor) for tensor in (transfer.send, transfer.into)]
    requests = []
    if transfer.send is not None:
        requests.append(lane.Isend(buffers[0], dest=transfer.to))
    if transfer.into is not None:
        requests.append(lane.Irecv(buffers[1], source=transfer.source))
    return _Pending(requests, buffers, lambda: () if transfer.into is None else (transfer.into,), done)


def _all_to_all(parts: Sequence[Tensor], sizes: Sequence[int], lane: Any, done: Done) -> _Pending:
    kind = parts[0].dtype
    received = torch.empty(sum(sizes), dtype=kind)
    sent, into = _raw(torch.cat([part.reshape(-1) for part in parts])), _raw(received)
    num_sent = [part.numel() * kind.itemsize for part in parts]
    num_into = [size * kind.itemsize for size in sizes]
    byte = load_mpi().BYTE
    request = lane.Ialltoallv([sent, num_sent, byte], [into, num_into, byte])
    return _Pending([request], (sent, into), lambda: received.split(list(sizes)), done)
