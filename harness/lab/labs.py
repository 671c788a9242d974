"""Labs on demand, one in namespaces and one outside per thread that asks: a lab is ended with the thread that started
it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import get_ident
from typing import Protocol

from harness.lab.launch import LabHandle
from harness.lab.messages import Answer, Event, Task

OnEvent = Callable[[Event], None]


class TaskRunner(Protocol):
    """What a bench has its tasks done by."""

    def ask(self, task: Task, on_event: OnEvent) -> Answer:
        """Have one task done on all its ranks. Raises: LabLost, FabricError."""

    def close(self) -> None:
        """End everything. May be called again."""


class Labs:
    """A runner on this machine: it starts every rank itself, and a lab that was lost anew. Threads may ask at the same
    time; closing ends what they wait for. `python` are the words that start an interpreter."""

    def __init__(self, python: Sequence[str] = (sys.executable,)) -> None:
        self._python = python
        self._labs: dict[tuple[bool, int], LabHandle] = {}

    def ask(self, task: Task, on_event: OnEvent = lambda event: None) -> Answer:
        """By a lab that can build the task's fabric, started if there is none. Raises: LabLost, FabricError."""
        # By thread: Linux sends the parent-death signal when the thread that forked ends, not the process.
        own = (task.fabric.kind.is_enclosed, get_ident())
        if own in self._labs and not self._labs[own].is_running:
            self._labs.pop(own).close()  # its folder and pipes are left
        if own not in self._labs:
            self._labs[own] = LabHandle(task.fabric, self._python)
        return self._labs[own].ask(task, on_event)

    def close(self) -> None:
        """End every lab, also if ending one of them fails."""
        with ExitStack() as stack:
            for lab in list(self._labs.values()):
                stack.callback(lab.close)
        self._labs = {}
