"""The libraries under test, each as a few blocking operations on buffers of bytes.

A buffer's size is that of nccl-tests: all-reduce and broadcast: the buffer; all-gather: what every rank ends with;
all-to-all: what a rank sends in all, its own part included; point-to-point: one message, of which half a ping-pong is
the time. Operations are summed as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol

import torch
import torch.distributed as dist

from harness.mpi.library import load_mpi

Run = Callable[[], object]


class Operation(StrEnum):
    """What is timed."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all-to-all"
    POINT_TO_POINT = "point-to-point"


class Library(Protocol):
    """A library on this rank, which has met the others."""

    rank: int
    size: int

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        """What runs `operation` once and returns when this rank is done; None if the library has no such operation."""

    def largest(self, value: float) -> float:
        """The maximum over ranks; also a barrier."""


class TorchLibrary:
    """gloo on CPU tensors, or NCCL on a GPU per rank, through torch.distributed."""

    def __init__(self, backend: str) -> None:
        dist.init_process_group(backend)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._device = torch.device("cuda", self.rank) if backend == "nccl" else torch.device("cpu")
        if backend == "nccl":
            torch.cuda.set_device(self._device)

    def prepare(self, operation: Operation, num_bytes: int) -> Run | None:
        whole = self._zeros(num_bytes)
        part = self._zeros(num_bytes // self.size)
        parts = self._zeros(part.numel() * 4 * self.size)
        runs: dict[Operation, Run] = {
            Operation.ALL_REDUCE: lambda: dist.all_reduce(whole),
            Operation.ALL_GATHER: lambda: dist.all_gather(list(parts.chunk(self.size)), part),
            Operation.BROADCAST: lambda: dist.broadcast(whole, 0),
            Operation.ALL_TO_ALL: lambda: dist.all_to_all_single(parts, self._from),
            Operation.POINT_TO_POINT: lambda: self._ping_pong(whole),
        }
        self._from = torch.zeros_like(parts)
        return self._until_idle(runs[operation])

    def _zeros(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(max(1, num_bytes // 4), device=self._device)

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
        whole = torch.zeros(max(1, num_bytes // 4)).numpy()
        part = torch.zeros(max(1, num_bytes // 4 // self.size)).numpy()
        sent, parts = (torch.zeros(part.size * self.size).numpy() for _ in range(2))
        world, in_place = self._world, self._mpi.IN_PLACE
        runs: dict[Operation, Run] = {
            Operation.ALL_REDUCE: lambda: world.Allreduce(in_place, whole),
            Operation.ALL_GATHER: lambda: world.Allgather(part, parts),
            Operation.BROADCAST: lambda: world.Bcast(whole),
            Operation.ALL_TO_ALL: lambda: world.Alltoall(sent, parts),
            Operation.POINT_TO_POINT: lambda: self._ping_pong(whole),
        }
        return runs[operation]

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
        hvd = self._hvd
        whole, part = torch.zeros(max(1, num_bytes // 4)), torch.zeros(max(1, num_bytes // 4 // self.size))
        sent = torch.zeros(part.numel() * self.size)
        runs: dict[Operation, Run] = {
            Operation.ALL_REDUCE: lambda: hvd.allreduce_(whole, name="all-reduce", op=hvd.Sum),
            Operation.ALL_GATHER: lambda: hvd.allgather(part, name="all-gather"),
            Operation.BROADCAST: lambda: hvd.broadcast_(whole, 0, name="broadcast"),
            Operation.ALL_TO_ALL: lambda: hvd.alltoall(sent, name="all-to-all"),
        }
        return runs.get(operation)

    def largest(self, value: float) -> float:
        told = self._hvd.allreduce(torch.tensor([value], dtype=torch.float64), name="largest", op=self._hvd.Max)
        return float(told)


def open_library(name: str) -> Library:
    """The library called `name` (gloo, nccl, mpi, horovod), on a rank that its own launcher started."""
    if name == "mpi":
        return MpiLibrary()
    if name == "horovod":
        return HorovodLibrary()
    return TorchLibrary(name)
