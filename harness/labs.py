"""Labs on demand, one a kind of fabric."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from fabric.api import FabricKind
from harness.launch import LabHandle
from harness.messages import Answer, Event, Task

OnEvent = Callable[[Event], None]


class Hands(Protocol):
    """What a bench has its tasks done by."""

    def ask(self, task: Task, on_event: OnEvent) -> Answer:
        """Have one task done on all its ranks. Raises: LabLost, FabricError."""

    def close(self) -> None:
        """End everything. May be called again."""


class Labs:
    """Hands on this machine: it starts every rank itself. A lab that was lost is started anew."""

    def __init__(self) -> None:
        self._labs: dict[FabricKind, LabHandle] = {}

    def ask(self, task: Task, on_event: OnEvent) -> Answer:
        kind = task.fabric.kind
        if kind not in self._labs or not self._labs[kind].is_running:
            self._labs[kind] = LabHandle(task.fabric)
        return self._labs[kind].ask(task, on_event)

    def close(self) -> None:
        with ExitStack() as stack:
            for lab in self._labs.values():
                stack.callback(lab.close)
        self._labs = {}
