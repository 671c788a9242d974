"""Forks a rank into its host and listens to it. A rank ends with the lab, whatever happens."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import NoReturn

import torch
import torch.distributed as dist

from crossover.supervisor import die_with_parent
from fabric.api import Cluster
from harness.asynchrony.processes import run_on_host
from harness.asynchrony.trial import run_virtual
from harness.calibrate import time_all_reduces
from harness.engine.transport import backends_for
from harness.lab.messages import Event, LinkTimes, Task, event_from, to_line
from harness.lab.rank import Place, RankResult, Signals, join_group, run_rank
from harness.lockstep.trial import run_lockstep
from harness.parallel.trial_clock import run_pipelines_on_clock
from harness.parallel.trial_rank import run_pipeline_rank
from harness.predict.rows import time_rows
from harness.splits.split_rank import run_split_rank
from harness.splits.split_trial import run_split_in_process
from harness.trial import Trial
from models.workload import Device

JOIN_TIMEOUT_S = 60.0
SAY_STEP_EVERY_S = 0.3
THROWN = re.compile(r"terminate called after throwing an instance of '(.+)'\n +what\(\): +(.+)")
LAST_WORDS = 4096  # characters of a log


@dataclass(slots=True)
class RankProcess:
    """The lab's handle on a rank. `pidfd` is readable when the process has ended."""

    place: Place
    name: str
    pid: int
    pidfd: int
    pipe: int
    log: Path
    last_step: int = -1
    _unread: bytes = b""
    _open: bool = field(default=True)

    def read(self) -> list[Event]:
        """Whatever complete lines have arrived."""
        self._unread += os.read(self.pipe, 1 << 20)
        *lines, self._unread = self._unread.split(b"\n")
        return [event_from(line) for line in lines]

    def drain(self) -> list[Event]:
        """Everything that an ended rank still said. The end of the pipe is not waited for: a process that the rank has
        started, such as a loader's worker, may still hold it."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.pipe, 1 << 20):
                self._unread += chunk
        *lines, self._unread = self._unread.split(b"\n")
        return [event_from(line) for line in lines]

    def ended_how(self) -> str:
        """After the process ended: in words. What it has started ends too."""
        self._kill_group()
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return f"was killed by signal {number} ({signal.Signals(number).name}){self._thrown()}"
        return f"exited with code {os.WEXITSTATUS(status)}"

    def _thrown(self) -> str:
        """The C++ exception that nothing caught, such as one of a library's own thread, which ends in an abort."""
        found = THROWN.findall(self.log.read_text(errors="replace")[-LAST_WORDS:])
        return " by {}: {}".format(*found[-1]) if found else ""

    def end(self) -> None:
        """Kill it if it lives, reap it, close everything. May be called again."""
        if not self._open:
            return
        self._open = False
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            self._kill_group()
            os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        os.close(self.pipe)

    def _kill_group(self) -> None:
        """Before it is reaped: until then its number is no other group's."""
        with suppress(ProcessLookupError):  # it ended before it had a group
            os.killpg(self.pid, signal.SIGKILL)


def fork_rank(task: Task, place: Place, cluster: Cluster, scratch: Path, go: tuple[int, int]) -> RankProcess:
    """Start one rank. It waits for the end of pipe `go` (read end, write end) before its first step."""
    name = _name(task, place)
    log = scratch / f"{name.replace(' ', '-')}.log"
    read_end, write_end = os.pipe()
    with ExitStack() as undo:
        undo.callback(os.close, read_end)
        try:
            lab_pid, pid = os.getpid(), os.fork()
            if pid == 0:
                # First of all: until it is asked for, a lab that dies leaves this process behind.
                die_with_parent(lab_pid)
                os.setpgid(0, 0)  # so that what the rank starts can be ended with it
                os.close(read_end)
                # The write end must be the lab's alone, else its closing lets nobody go.
                os.close(go[1])
                _child(task, place, cluster, log, write_end, go[0])
        finally:
            os.close(write_end)
        undo.callback(os.waitpid, pid, 0)
        undo.callback(os.kill, pid, signal.SIGKILL)
        os.set_blocking(read_end, False)
        rank = RankProcess(place, name, pid, os.pidfd_open(pid), read_end, log)
        undo.pop_all()
    return rank


def _name(task: Task, place: Place) -> str:
    job = f"job {task.trial.jobs[place.job].name} " if task.trial is not None else ""
    return f"{job}rank {place.rank}"


def _child(task: Task, place: Place, cluster: Cluster, log: Path, pipe: int, go: int) -> NoReturn:
    """The forked process: never returns into the lab's code."""
    code = 1
    try:
        _redirect(log)
        # Before torch makes any thread: a thread stays in the namespace in which it was made.
        cluster.enter(place.host.index)
        _pin(task, place)
        torch.set_num_threads(1)
        for event in _work(task, place, pipe, go):
            os.write(pipe, to_line(event))
        code = 0
    except BaseException as error:  # noqa: BLE001  the process ends here; the lab reports it
        traceback.print_exc()
        sys.stderr.flush()
        os.write(pipe, to_line(Event(kind="error", message=f"{type(error).__name__}: {error}")))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _redirect(log: Path) -> None:
    # The lab's handlers were inherited, and would run the lab's own clean-up here.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _pin(task: Task, place: Place) -> None:
    """With real compute a host is one core, as far as there are enough of them."""
    cores = sorted(os.sched_getaffinity(0))
    computes = task.trial is not None and any(job.workload.device is Device.CPU for job in task.trial.jobs)
    if computes and task.fabric.kind.has_processes and task.world <= len(cores):
        os.sched_setaffinity(0, {cores[place.slot]})


def _work(task: Task, place: Place, pipe: int, go: int) -> Iterator[Event]:
    if not task.fabric.kind.has_processes:
        assert task.trial is not None
        signals = Signals(_ready_signal(pipe, go, alone=True), _step_signal(pipe))
        results = _in_one_process(task.trial, place, signals)
        yield from (Event(kind="result", result=result) for result in results)
        return
    join_group(place, task.fabric, task.world, JOIN_TIMEOUT_S, backends_for(_devices(task)))
    ready = _ready_signal(pipe, go)
    if task.links is not None:
        ready()
        sizes = task.links.num_bytes
        times_s = time_rows(task.links.rows, task.links.num_repeats) if task.links.rows else ()
        times_s += time_all_reduces(sizes, task.links.num_repeats)
        dist.barrier()
        yield Event(kind="links", links=LinkTimes(rank=place.rank, num_bytes=sizes, times_s=times_s))
        return
    assert task.trial is not None
    result = _rank_of(task.trial)(task.trial, place, Signals(ready, _step_signal(pipe)))
    yield Event(kind="result", result=result)


def _rank_of(trial: Trial) -> Callable[[Trial, Place, Signals], RankResult]:
    """What trains a rank: a stage, a part of every layer, a worker or server of its own pace, or a replica."""
    if trial.is_pipelined:
        return run_pipeline_rank
    if trial.is_split:
        return run_split_rank
    return run_rank if trial.cluster is None else run_on_host


def _in_one_process(trial: Trial, place: Place, signals: Signals) -> Iterator[RankResult]:
    """All ranks of a trial without processes: on a virtual clock, or in lockstep."""
    if trial.is_pipelined:
        return run_pipelines_on_clock(trial, signals)
    if trial.is_split:
        return run_split_in_process(trial, signals)
    return run_virtual(trial, signals) if trial.cluster is not None else run_lockstep(trial, place, signals)


def _devices(task: Task) -> set[Device]:
    return {job.workload.device for job in task.trial.jobs} if task.trial is not None else set()


def _ready_signal(pipe: int, go: int, *, alone: bool = False) -> Callable[[], None]:
    def ready() -> None:
        # What is there by now stays, and looking through it for garbage would stop a step for a quarter of a second.
        gc.collect()
        gc.freeze()
        if not alone:
            dist.barrier()
        os.write(pipe, to_line(Event(kind="ready")))
        os.read(go, 1)  # returns at end of file: the lab let everybody go

    return ready


def _step_signal(pipe: int) -> Callable[[int], None]:
    """Says where the rank is, now and then: lab and launcher run on the cores that are measured."""
    said_s = 0.0

    def say(step: int) -> None:
        nonlocal said_s
        if monotonic() - said_s >= SAY_STEP_EVERY_S:
            said_s = monotonic()
            os.write(pipe, to_line(Event(kind="step", step=step)))

    return say
