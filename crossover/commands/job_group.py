"""Jobs that run together: their output passed on, their ends noted, and all of them ended in order when asked."""

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from crossover.commands.launching import JobCommand, SupervisedJob, told_end
from crossover.commands.screen import LineSplitter, Screen
from crossover.errors import Refused
from crossover.supervisor import adopt_orphans, end_descendants

TICK_S = 0.25
_READ_BYTES = 65536


@dataclass(frozen=True, slots=True)
class Shutdown:
    """How jobs are made to end: after so many seconds, this signal."""

    why: str
    steps: tuple[tuple[float, signal.Signals], ...]
    code: int | None = None  # of `crossover run`, where the jobs' own codes do not decide


INTERRUPTED = Shutdown(
    "interrupted: waiting for the jobs to end (again: kill them)",
    ((0.0, signal.SIGINT), (5.0, signal.SIGTERM), (10.0, signal.SIGKILL)),
    130,
)
TERMINATED = Shutdown("terminated: waiting for the jobs to end", ((0.0, signal.SIGTERM), (5.0, signal.SIGKILL)), 143)
FAILED_FAST = Shutdown("a job failed: ending the others", TERMINATED.steps)
_KILLED = Shutdown("killing the jobs", ((0.0, signal.SIGKILL),))
_SHUTDOWNS: Mapping[int, Shutdown] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED, signal.SIGHUP: TERMINATED}


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended; in the order of the ends, the first failure decides the whole run's exit code."""

    name: str
    code: int
    wall_s: float


@dataclass(slots=True)
class _RunningJob:
    job: SupervisedJob
    log: BinaryIO | None
    began_s: float
    lines: LineSplitter = field(default_factory=LineSplitter)


class JobGroup:
    """Runs commands to their ends; `tick(now_s)` is called a few times per second, `on_end` for each job that ended."""

    def __init__(
        self,
        screen: Screen,
        log_folder: Path | None,
        tick: Callable[[float], None],
        *,
        fail_fast: bool = False,
        on_end: Callable[[JobEnd], None] = lambda end: None,
    ) -> None:
        self._screen = screen
        self._log_folder = log_folder
        self._tick = tick
        self._fail_fast = fail_fast
        self._on_end = on_end
        self._selector = selectors.DefaultSelector()
        self._running: dict[str, _RunningJob] = {}
        self._ends: list[JobEnd] = []
        self._ending: Shutdown | None = None
        self._steps: list[tuple[float, signal.Signals]] = []
        self._code: int | None = None
        self._next_tick_s = 0.0

    @property
    def code(self) -> int | None:
        """130 or 143 after a signal; else None, and the jobs' ends say how it went."""
        return self._code

    def run(self, commands: Sequence[JobCommand], environments: Mapping[str, Mapping[str, str]]) -> tuple[JobEnd, ...]:
        """Start all commands and return when the last has ended; nothing of them is left, whatever happens."""
        with ExitStack() as stack:
            stack.callback(self._selector.close)
            stack.enter_context(_orphans_adopted())
            self._watch(stack.enter_context(_signals()), self._take_signals)
            for command in commands:
                self._start(command, environments[command.name], stack)
            while self._running:
                self._turn()
        return tuple(self._ends)

    def _start(self, command: JobCommand, environment: Mapping[str, str], stack: ExitStack) -> None:
        log = stack.enter_context(_open_log(self._log_folder, command.name)) if self._log_folder else None
        job = SupervisedJob(command, environment)
        stack.callback(job.close)
        self._running[command.name] = _RunningJob(job, log, time.monotonic())
        # a job that writes half a line must not hold the others' output
        os.set_blocking(job.output.fileno(), False)
        self._watch(job.output.fileno(), partial(self._read, command.name))
        self._watch(job.pid_fd, partial(self._bury, command.name))

    def _watch(self, fd: int, react: Callable[[int], object]) -> None:
        self._selector.register(fd, selectors.EVENT_READ, react)

    def _turn(self) -> None:
        for key, _ in self._selector.select(TICK_S):
            if key.fd in self._selector.get_map():  # else done with by an event before it
                key.data(key.fd)
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + TICK_S
            self._tick(now_s)
        # signals of a shutdown that have become due
        while self._steps and self._steps[0][0] <= now_s:
            _, number = self._steps.pop(0)
            for running in self._running.values():
                running.job.send(number)

    def _read(self, name: str, fd: int) -> bool:
        """Pass on what a job has written; whether there may be more."""
        running = self._running[name]
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self._write_log(name, data)
        for line in running.lines.feed(data, time.monotonic()) if data else running.lines.end():
            self._screen.job_line(name, line)
        if not data:
            self._selector.unregister(fd)
        return bool(data)

    def _write_log(self, name: str, data: bytes) -> None:
        """Keep what a job has written; a log that takes no more is given up, and the job goes on."""
        running = self._running[name]
        if running.log is None:
            return
        try:
            running.log.write(data)
        except OSError as error:
            running.log = None
            self._screen.say(f"crossover: log of {name} is given up ({error.strerror}); the job goes on")

    def _bury(self, name: str, fd: int) -> None:
        running = self._running[name]
        output = running.job.output.fileno()
        # what it wrote last is in the pipe still
        while output in self._selector.get_map() and self._read(name, output):
            pass
        for watched in {fd, output} & set(self._selector.get_map()):
            self._selector.unregister(watched)
        for line in running.lines.end():
            self._screen.job_line(name, line)
        end = JobEnd(name, running.job.reap(), time.monotonic() - running.began_s)
        del self._running[name]
        if running.job.was_killed:  # what it supervised has fallen to this process
            self._screen.say(f"crossover: the supervisor of {name} was killed: ending what the job has left")
            end_descendants(spared=[other.job.pid for other in self._running.values()])
        self._ends.append(end)
        self._on_end(end)
        self._screen.job_line(name, self._screen.paint(f"[{told_end(end.code)} after {end.wall_s:.1f} s]", 2))
        if end.code and self._fail_fast and self._running:
            self._begin_ending(FAILED_FAST)

    def _take_signals(self, fd: int) -> None:
        for number in os.read(fd, 64):
            # Signals for which somebody else has a handler, as for the end of a child, arrive here too.
            if (ending := _SHUTDOWNS.get(number)) is not None:
                self._begin_ending(ending)

    def _begin_ending(self, ending: Shutdown) -> None:
        """A second signal means at once."""
        # the jobs end already, for the user's sake
        if self._ending is not None and ending is FAILED_FAST:
            return
        # the first signal decides, as a shell would tell it
        self._code = self._code or ending.code
        if self._ending is not None:
            ending = _KILLED
        self._ending = ending
        now_s = time.monotonic()
        self._steps = [(now_s + after_s, number) for after_s, number in ending.steps]
        self._screen.say(f"crossover: {ending.why}")


def _open_log(folder: Path, name: str) -> BinaryIO:
    path = folder / f"{name}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return path.open("wb", buffering=0)
    except OSError as error:
        raise Refused(f"log {path} cannot be written ({error.strerror}): name another --log-dir") from error


@contextmanager
def _orphans_adopted() -> Iterator[None]:
    """While the block lasts, what a killed supervisor has left becomes this process's child, and can be ended."""
    adopt_orphans()
    try:
        yield
    finally:
        adopt_orphans(adopt=False)


@contextmanager
def _signals() -> Iterator[int]:
    """A descriptor on which the numbers of Ctrl-C, SIGTERM and SIGHUP arrive as bytes while the block lasts."""

    def leave_to_the_loop(number: int, frame: FrameType | None) -> None:
        """The wake-up descriptor has it already."""

    read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    heeded = [name for name in _SHUTDOWNS if signal.getsignal(name) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {name: signal.signal(name, leave_to_the_loop) for name in heeded}
    try:
        yield read_fd
    finally:
        for name, action in before.items():
            signal.signal(name, action)
        signal.set_wakeup_fd(before_fd)
        os.close(read_fd)
        os.close(write_fd)
