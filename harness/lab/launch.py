"""The launcher's side: starts labs, asks them, and never leaves one behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from crossover.arbiter.listening import socket_place
from crossover.supervisor import ending_with_me, supervised
from fabric.api import FabricSpec, command_prefix
from harness.lab.messages import Answer, Ending, Event, Task, event_from, to_line
from harness.lab.scratch import Scratch

OnEvent = Callable[[Event], None]
CHECKOUT = Path(__file__).resolve().parents[2]
CLOSE_LIMIT_S = 60.0  # longer than the supervisor's own
GRACE_S = 30.0  # building hosts, importing and forking come on top of a task's own time


class LabLost(RuntimeError):
    """The lab ended without an answer; the message has the end of what it printed."""


class LabHandle:
    """A running lab that can build the fabric `spec`. A context manager; leaving it ends everything in it.

    `python` are the words that start an interpreter. Raises: FabricError if this machine cannot have the fabric.
    """

    def __init__(self, spec: FabricSpec, python: Sequence[str] = (sys.executable,)) -> None:
        namespaces = command_prefix(spec)
        self._scratch = Scratch()
        self._log = self._scratch.path / "lab.log"
        lab = [*python, "-m", "harness.lab", str(self._scratch.path)]
        command = [*supervised(ending_with_me()), *namespaces, *(supervised() if namespaces else []), *lab]
        try:
            self._process = self._started(command)
        except BaseException:
            self._scratch.remove()
            raise
        self._unread = b""

    def _started(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Raises OSError, for example where no descriptor is left."""
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=CHECKOUT,
                env=_environment(),
                bufsize=0,
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which then ends the lab
            )

    def ask(self, task: Task, on_event: OnEvent = lambda event: None) -> Answer:
        """Have one task done; `on_event` sees progress on the way.

        Raises: LabLost if the lab dies.
        """
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise LabLost("the lab was ended when a task before gave no answer in time; start another one")
        try:
            self._process.stdin.write(to_line(task))
        except BrokenPipeError:
            raise self._lost() from None
        deadline_s = monotonic() + task.timeout_s + GRACE_S
        while True:
            event = self._next_event(deadline_s)
            if event is None:
                # An answer that came now would be taken for the next task's.
                self.close()
                return Answer(ending=Ending.TIMEOUT, reason=f"the lab gave no answer within {task.timeout_s:g} s")
            if event.kind == "answer":
                assert event.answer is not None
                return event.answer
            on_event(event)

    def _next_event(self, deadline_s: float) -> Event | None:
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, deadline_s - monotonic()))
            if not ready:
                return None
            chunk = os.read(self._process.stdout.fileno(), 1 << 20)
            if not chunk:
                raise self._lost()
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        return event_from(line)

    def _lost(self) -> LabLost:
        # The pipe closes a moment before the process can be reaped.
        code = self._process.wait(5)
        tail = self._log.read_text(errors="replace").strip()[-1500:]
        return LabLost(f"the lab ended with code {code} without an answer; it printed:\n{tail}")

    def close(self) -> None:
        """End the lab and all in it. May be called again."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)  # a supervisor that was stopped must run to end its lab
            self._process.terminate()
            try:
                self._process.wait(CLOSE_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._scratch.remove()

    @property
    def is_running(self) -> bool:
        """Whether the lab's supervisor has not ended."""
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        **os.environ,
        "PYTHONPATH": path,
        "TMPDIR": str(socket_place()),  # multiprocessing's sockets, by which loaders hand over tensors, lie there too
        # A host of the emulated cluster stands for one core.
        "OMP_NUM_THREADS": "1",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # asking whether there is a GPU must not spoil it for forked ranks
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "",  # every lab would compile what it imports
    }
