"""Launched ranks: the processes that torchrun or another launcher started, doing a bench's tasks together.

Rank 0 leads: it alone walks the grid, prints and writes records. For each task it tells the others,
every process asks a lab of its own for its own rank of it, and rank 0 gathers the answers. So each
trial runs in fresh processes and a fresh process group, and one that fails or hangs takes nothing
along. Their own group is gloo and carries JSON as bytes.

On many machines each lab is on its rank's machine: spans of a trace and the jobs' start times are
on the machines' own clocks.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist

from fabric.api import FabricError, Host
from harness.lab.labs import Labs, OnEvent, TaskRunner
from harness.lab.launch import LabLost
from harness.lab.meeting import Meeting, StrangerError, hand_out, handed_out, join
from harness.lab.messages import Answer, Ending, Part, Task, answer_from, task_from, to_line
from harness.lab.scratch import Scratch
from harness.lab.spmd import LaunchError, Placement

JOIN_TIMEOUT_S = 300.0
IDLE_TIMEOUT = timedelta(days=1)  # followers wait for the leader's next task; a peer that dies ends the wait
STOP = b""


class RanksLost(RuntimeError):
    """Another rank's process has ended, so nothing can be done together any more."""


class LaunchedRanks:
    """This process among the launched ranks; joining blocks until all ranks are there.

    Raises: LaunchError if they do not come.

    On rank 0 these are the `TaskRunner` of a bench; the others `follow`. `close` (rank 0) lets them go.
    """

    def __init__(self, placement: Placement, runner: TaskRunner | None = None) -> None:
        self.placement = placement
        self._runner = runner or Labs()
        self._host = own_host(placement)
        self._num_tasks = 0
        self._busy = False
        self._scratch: Scratch | None = None
        os.environ["GLOO_SOCKET_IFNAME"] = self._host.interface
        try:
            self._meeting = self._agreed_meeting()
            store = self._meeting.named("ranks").store(placement.world, JOIN_TIMEOUT_S, serves=placement.serves_store)
            join(store, placement.rank, placement.world, backend="gloo", timeout=IDLE_TIMEOUT)
        except (dist.DistError, StrangerError, OSError) as error:
            where = "on this machine" if placement.run else f"at {placement.address}:{placement.port}"
            raise LaunchError(
                f"the {placement.world} ranks did not meet {where} within {JOIN_TIMEOUT_S:g} s ({error}); check that "
                "all were started and can reach it"
            ) from error

    def _agreed_meeting(self) -> Meeting:
        """The launcher's store, which prefixes divide among tasks; on one machine a folder of rank 0's."""
        placement = self.placement
        if not placement.run:
            prefix = f"crossover-bench/attempt{placement.attempt}"
            return Meeting(address=placement.address, port=placement.port, prefix=prefix)
        run = f"{os.geteuid()} {placement.run} {placement.attempt}"
        name = f"crossover-bench-{hashlib.sha256(run.encode()).hexdigest()}"
        if placement.rank:
            return Meeting(str(handed_out(name, JOIN_TIMEOUT_S) / "store"))
        self._scratch = Scratch()
        hand_out(self._scratch.path, name, placement.world - 1, JOIN_TIMEOUT_S)
        return Meeting(str(self._scratch.path / "store"))

    def ask(self, task: Task, on_event: OnEvent) -> Answer:
        """Rank 0: have all ranks do `task`. The answer names every rank that did not end well.

        Raises: RanksLost.
        """
        self._busy = True
        _broadcast(to_line(task))
        answer = merge(self._do(task, on_event))
        self._busy = False
        return answer

    def follow(self) -> None:
        """The other ranks: do what rank 0 asks, until it has no more. Raises: RanksLost."""
        try:
            while line := _broadcast(STOP):
                self._do(task_from(line), lambda event: None)
        finally:
            self._leave()

    def close(self) -> None:
        """Rank 0: let the others go, and leave. May be called again.

        In the middle of a task they cannot hear it; they notice that rank 0 is gone.
        """
        if not dist.is_initialized():
            return
        try:
            if not self._busy:
                _broadcast(STOP)
        finally:
            self._leave()

    def _do(self, task: Task, on_event: OnEvent) -> list[Answer]:
        """Do this rank's part; all ranks' answers on rank 0, none elsewhere."""
        self._num_tasks += 1
        try:
            answer = self._runner.ask(dataclasses.replace(task, part=self._part()), on_event)
        # Still part of the gather below: a rank that left it out would block all others.
        except (LabLost, FabricError) as error:
            answer = Answer(ending=Ending.FAILED, reason=f"rank {self.placement.rank}: {error}")
        return [answer_from(line) for line in _gather(to_line(answer))]

    def _part(self) -> Part:
        meeting = self._meeting.named(f"task{self._num_tasks}")
        return Part(host=self._host, slot=self.placement.local_rank, meeting=meeting)

    def _leave(self) -> None:
        try:
            self._runner.close()
        finally:
            dist.destroy_process_group()
            if self._scratch is not None:
                self._scratch.remove()


def merge(answers: Sequence[Answer]) -> Answer:
    """One answer from every rank's own. It failed if one failed; reasons are told apart by rank."""
    results = tuple(sorted((rank for a in answers for rank in a.ranks), key=lambda rank: (rank.job, rank.rank)))
    links = tuple(sorted((times for a in answers for times in a.links), key=lambda times: times.rank))
    for ending in (Ending.FAILED, Ending.INTRUDED, Ending.TIMEOUT, Ending.UNAVAILABLE):
        if any(answer.ending is ending for answer in answers):
            reasons = dict.fromkeys(answer.reason for answer in answers if answer.reason)
            return Answer(ending=ending, reason="; ".join(reasons))
    return Answer(ending=Ending.DONE, ranks=results, links=links)


def own_host(placement: Placement) -> Host:
    """This machine as seen from the others: the address and interface that lead to `placement.address`.

    Raises: LaunchError if that name or the user's interface is unknown here.
    """
    try:
        leads_to = socket.getaddrinfo(placement.address, placement.port, socket.AF_INET, socket.SOCK_DGRAM)[0][4]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(leads_to)  # sends nothing
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise LaunchError(
            f"MASTER_ADDR={placement.address!r} cannot be reached from {socket.gethostname()} ({error}); set it to a "
            "name or IPv4 address of rank 0's machine that every machine knows"
        ) from error
    interface = placement.interface or _interface_of(address)
    return Host(index=placement.rank, name=socket.gethostname(), address=address, interface=interface)


def _interface_of(address: str) -> str:
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return str(name)
    raise LaunchError(f"no network interface has the address {address}; name one with GLOO_SOCKET_IFNAME")


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RanksLost(f"another rank has ended: {error}") from error


def _broadcast(line: bytes) -> bytes:
    """Rank 0's bytes, on every rank."""
    # Collectives need equal sizes on all ranks, so the size goes ahead of the bytes.
    size = torch.tensor([len(line)])
    with _together():
        dist.broadcast(size, src=0)
    padded = _padded(line, int(size))
    if int(size):
        with _together():
            dist.broadcast(padded, src=0)
    return padded.numpy().tobytes()


def _gather(line: bytes) -> list[bytes]:
    """Every rank's bytes in order of rank on rank 0; nothing elsewhere."""
    own_size = torch.tensor([len(line)])
    sizes = [torch.zeros_like(own_size) for _ in range(dist.get_world_size())]
    with _together():
        dist.all_gather(sizes, own_size)
    # gloo gathers tensors of one size alone; each is cut back to its own afterwards.
    longest = max(int(size) for size in sizes)
    leads = dist.get_rank() == 0
    parts = [_padded(b"", longest) for _ in sizes] if leads else None
    with _together():
        dist.gather(_padded(line, longest), parts, dst=0)
    return [part[: int(size)].numpy().tobytes() for part, size in zip(parts or (), sizes, strict=False)]


def _padded(line: bytes, size: int) -> torch.Tensor:
    """`line` as bytes in a tensor [size]; only as much of it as fits."""
    padded = torch.zeros(size, dtype=torch.uint8)
    if line:
        padded[: len(line)] = torch.frombuffer(bytearray(line), dtype=torch.uint8)
    return padded
