"""The libraries under test, each as a few blocking operations on buffers of bytes.

A buffer's size is that of nccl-tests: all-reduce and broadcast: the buffer; all-gather: what every rank ends with;
all-to-all: what a rank sends in all, its own part included; point-to-point: one message, of which half a ping-pong is
the time. Operations are summed as float32.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from harness.hosted import STORE
from harness.lab.meeting import Meeting, join
from harness.mpi.library import load_mpi
from results.collectives import Operation

TIMEOUT_S = 1800.0  # of an operation, as torch's own
Run = Callable[[], object]


class Library(Protocol):
    """A library on this rank, which has met the others."""

    rank: int
    size: int

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        """What runs `operation` once and returns when this rank is done, on buffers for it alone, since the largest are
        hundreds of megabytes; None if the library has no such operation."""

    def largest(self, value: float) -> float:
        """The maximum over ranks; also a barrier."""


class TorchLibrary:
    """gloo on CPU tensors, or NCCL on a GPU per rank, through torch.distributed."""

    def __init__(self, backend: str) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = Meeting(os.environ[STORE]).store(self.size, TIMEOUT_S)
        join(store, self.rank, self.size, backend=backend, timeout=timedelta(seconds=TIMEOUT_S))
        self._device = torch.device("cuda", self.rank) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(self._device)

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        return self._until_idle(self._run_of(operation, num_bytes))

    def _run_of(self, operation: Operation, num_bytes: int) -> Run:
        share = num_bytes // self.size
        if operation is Operation.ALL_GATHER:
            part, parts = (self._zeros(share, count) for count in (1, self.size))
            return lambda: dist.all_gather(list(parts.chunk(self.size)), part)
        if operation is Operation.ALL_TO_ALL:
            sent, received = self._zeros(share, self.size), self._zeros(share, self.size)
            return lambda: dist.all_to_all_single(received, sent)
        whole = self._zeros(num_bytes)
        if operation is Operation.ALL_REDUCE:
            return lambda: dist.all_reduce(whole)
        return (
            (lambda: dist.broadcast(whole, 0)) if operation is Operation.BROADCAST else lambda: self._ping_pong(whole)
        )

    def _zeros(self, num_bytes: int, count: int = 1) -> torch.Tensor:
        return zeros(num_bytes, count).to(self._device)

    def _ping_pong(self, tensor: torch.Tensor) -> None:
        if self.rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, 1)
        elif self.rank == 1:
            dist.recv(tensor, 0)
            dist.send(tensor, 0)

    def _until_idle(self, run: Run) -> Run:
        if self._device.type == "cpu":
            return run

        def synchronised() -> None:
            run()
            torch.cuda.synchronize()

        return synchronised

    def largest(self, value: float) -> float:
        told = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return float(told)


class MpiLibrary:
    """mpi4py's operations on buffers, on what `mpiexec` started."""

    def __init__(self) -> None:
        self._mpi = load_mpi()
        self._world = self._mpi.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        world, share = self._world, num_bytes // self.size
        if operation is Operation.ALL_GATHER:
            part, parts = zeros(share).numpy(), zeros(share, self.size).numpy()
            return lambda: world.Allgather(part, parts)
        if operation is Operation.ALL_TO_ALL:
            sent, received = zeros(share, self.size).numpy(), zeros(share, self.size).numpy()
            return lambda: world.Alltoall(sent, received)
        whole = zeros(num_bytes).numpy()
        if operation is Operation.ALL_REDUCE:
            return lambda: world.Allreduce(self._mpi.IN_PLACE, whole)
        return (lambda: world.Bcast(whole)) if operation is Operation.BROADCAST else lambda: self._ping_pong(whole)

    def _ping_pong(self, array: Any) -> None:
        if self.rank == 0:
            self._world.Send(array, dest=1)
            self._world.Recv(array, source=1)
        elif self.rank == 1:
            self._world.Recv(array, source=0)
            self._world.Send(array, dest=0)

    def largest(self, value: float) -> float:
        return float(self._world.allreduce(value, op=self._mpi.MAX))


class HorovodLibrary:
    """Horovod's operations on tensors; it sends nothing from rank to rank."""

    def __init__(self) -> None:
        import horovod.torch as hvd

        hvd.init()
        self._hvd = hvd
        self.rank, self.size = hvd.rank(), hvd.size()

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        hvd, name, share = self._hvd, operation.value, num_bytes // self.size
        if operation is Operation.ALL_GATHER:
            part = zeros(share)
            return lambda: hvd.allgather(part, name=name)
        if operation is Operation.ALL_TO_ALL:
            sent = zeros(share, self.size)
            return lambda: hvd.alltoall(sent, name=name)
        if operation is Operation.POINT_TO_POINT:
            return None
        whole = zeros(num_bytes)
        if operation is Operation.ALL_REDUCE:
            return lambda: hvd.allreduce_(whole, name=name, op=hvd.Sum)
        return lambda: hvd.broadcast_(whole, 0, name=name)

    def largest(self, value: float) -> float:
        told = self._hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="largest", op=self._hvd.Max)
        return float(told)


def zeros(num_bytes: int, count: int = 1) -> torch.Tensor:
    """`count` buffers of float32 in one, each of `num_bytes`, one element at least."""
    return torch.zeros(max(1, num_bytes // 4) * count)


def open_library(name: str) -> Library:
    """The library called `name` (gloo, nccl, mpi, horovod), on a rank that its own launcher started."""
    if name == "mpi":
        return MpiLibrary()
    if name == "horovod":
        return HorovodLibrary()
    return TorchLibrary(name)
