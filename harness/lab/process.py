"""The lab: the one process in which everything of a suite happens, and with which everything ends.

On the emulated fabric it is process 1 of its own namespaces, so its death, however it comes,
takes ranks, arbiters, links and hosts along. It imports torch once, builds the cluster, forks
ranks into hosts and answers tasks that come as JSON lines on stdin. End of input ends it.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import torch
from torch import nn

from baselines import kernels
from crossover import CrossoverError
from fabric.api import Cluster, FabricError, FabricSpec, build
from harness.garbage import lasting
from harness.lab.gpu import keep_forkable
from harness.lab.messages import Answer, Ending, Event, Part, Task, task_from, to_line
from harness.lab.rank import Place
from harness.lab.rank_process import RankProcess, fork_rank
from harness.lab.services import places
from harness.lab.watch import LauncherGone, Watch
from harness.parallel.placement import graph_of_workload
from harness.systems import system_of
from harness.systems.api import Preloads
from harness.trial import Trial
from models.device import DeviceError
from models.workload import Device, WorkloadError, open_workload


@dataclass(slots=True)
class Lab:
    """Holds the present cluster and serves tasks on it. Logs of ranks go to `scratch`."""

    commands: BinaryIO
    replies: BinaryIO
    scratch: Path
    _cluster: Cluster | None = None
    _opened: set[str] = field(default_factory=set)

    def serve(self) -> None:
        """Answer tasks until the launcher hangs up."""
        try:
            while line := self.commands.readline():
                answer = self._answer(task_from(line))
                self._say(Event(kind="answer", answer=answer))
        finally:
            self._close_cluster()

    def _say(self, event: Event) -> None:
        self.replies.write(to_line(event))
        self.replies.flush()

    def _answer(self, task: Task) -> Answer:
        try:
            _check_seats(task)
            cluster = self._cluster_for(task.fabric)
            with lasting():
                if task.trial is not None:
                    self._preload(task.trial)
                elif task.links is not None and task.links.rows:
                    _step_once()
        except (FabricError, DeviceError, WorkloadError) as error:
            return Answer(ending=Ending.UNAVAILABLE, reason=str(error))
        return self._run_at(task, cluster)

    def _run_at(self, task: Task, cluster: Cluster) -> Answer:
        """Run the task with what it needs on its hosts. A fabric may not fit the trial, which skips it; an arbiter or
        a virtual device that does not start, or dies, is a failure."""
        hosts = (task.part.host,) if task.part else cluster.hosts
        try:
            with places(task.trial, task.fabric.kind, hosts, self.scratch) as seats:
                return self._run(task, cluster, [_meeting(seat, task.part) for seat in seats])
        except FabricError as error:
            return Answer(ending=Ending.UNAVAILABLE, reason=str(error))
        except (CrossoverError, DeviceError, OSError) as error:
            return Answer(ending=Ending.FAILED, reason=str(error))

    def _cluster_for(self, spec: FabricSpec) -> Cluster:
        # Building hosts takes time, so trials that follow each other on one fabric share them.
        if self._cluster is None or self._cluster.spec != spec:
            self._close_cluster()
            self._cluster = build(spec)
        return self._cluster

    def _close_cluster(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = None

    def _preload(self, trial: Trial) -> None:
        """Import and read once what every forked rank needs; the forks share it."""
        for job in trial.jobs:
            system = system_of(job.system)
            if isinstance(system, Preloads) and job.workload.device is not Device.CUDA:
                system.preload()
            # Compiled kernels are loaded once and shared by the forks; each rank would otherwise compile or load them
            # in its first step.
            if job.system == "ours" and job.resolve().compression.lossy:
                kernels.warm_up()
            # Counting a large network's layers takes seconds, and every stage is cut by them.
            if job.pipelining is not None:
                graph_of_workload(job.workload)
            if repr(job.workload) not in self._opened:
                workload = open_workload(job.workload)
                # A GPU that was used here could not be used by forked ranks; what building imports takes seconds.
                if job.workload.device is Device.CUDA:
                    workload = open_workload(dataclasses.replace(job.workload, device=Device.CPU))
                workload.build_model(trial.seed)
                _step_once()
                self._opened.add(repr(job.workload))

    def _run(self, task: Task, cluster: Cluster, seats: list[Place]) -> Answer:
        before = cluster.counters()
        ranks, go = self._fork(task, cluster, seats)
        watch = Watch(task, ranks, go=go, commands=self.commands.fileno(), say=self._say)
        try:
            answer = watch.until_done()
            after = cluster.counters()
        finally:
            for rank in ranks:
                rank.end()
            watch.close()
        # The native fabric's interfaces are the machine's own, and other traffic crosses them.
        if before is None or after is None:
            return answer
        sent = [late - early for late, early in zip(after, before, strict=True)]
        return dataclasses.replace(
            answer,
            sent_bytes=tuple(crossed.tx_bytes for crossed in sent),
            sent_packets=tuple(crossed.tx_packets for crossed in sent),
            resent_segments=tuple(crossed.resent_segments for crossed in sent),
        )

    def _fork(self, task: Task, cluster: Cluster, seats: list[Place]) -> tuple[list[RankProcess], int]:
        """All ranks, and the write end of the pipe that they wait for. If one cannot be started, none is left."""
        go_read, go_write = os.pipe()
        ranks: list[RankProcess] = []
        with ExitStack() as undo:
            undo.callback(os.close, go_write)
            try:
                for seat in seats:
                    ranks.append(fork_rank(task, seat, cluster, self.scratch, (go_read, go_write)))
                    undo.callback(ranks[-1].end)
            finally:
                # The lab keeps the write end alone: ranks see the end of the pipe when it is closed, by will or by the
                # lab's death.
                os.close(go_read)
            undo.pop_all()
        return ranks, go_write


def _meeting(place: Place, part: Part | None) -> Place:
    """The same place, meeting the ranks of other labs where `part` says."""
    if part is None:
        return place
    return dataclasses.replace(place, slot=part.slot, meeting=part.meeting.named(f"job{place.job}"))


def _check_seats(task: Task) -> None:
    if task.part is not None and not task.fabric.kind.has_processes:
        raise FabricError("lockstep is one process; start the bench without the launcher")
    if task.part is not None and task.trial is not None and task.trial.ranks_per_host > 1:
        raise FabricError(
            f"ranks_per_host={task.trial.ranks_per_host} under a launcher, whose every process is a host of one rank; "
            "use ranks_per_host=1, or start the bench without the launcher"
        )


def _step_once() -> None:
    """One step on a zero: torch imports most of itself with the first one, which every rank would do again.

    Of SGD, whatever a job trains with: Adam asks CUDA whether it is recording a graph, which starts CUDA here.
    """
    parameter = nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros_like(parameter)
    torch.optim.SGD([parameter], lr=0.1).step()


def main() -> int:
    """Tasks on stdin, answers on stdout; logs go to the folder that the command line names."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever libraries print must not mix with the answers
    # Before the first fork, which a pool of threads does not survive.
    torch.set_num_threads(1)
    keep_forkable()
    commands = os.fdopen(os.dup(0), "rb", buffering=0)
    # Ranks inherit descriptor 0, and none of them may read the launcher's commands.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with commands, replies:
        try:
            Lab(commands, replies, Path(sys.argv[1])).serve()
        except (LauncherGone, BrokenPipeError):
            return 1
    return 0
