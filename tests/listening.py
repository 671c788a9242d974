"""Where processes listen, and labs whose ranks may listen at the loopback address alone."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import psutil

from harness.lab.labs import Labs
from harness.lab.messages import Answer, Event, Task

LOOPBACK = "127.0.0.1"


def listening_at(pid: int) -> set[tuple[str, int]]:
    """(address, port) of a process's listeners in this network namespace; none once it has ended."""
    try:
        found = psutil.Process(pid).net_connections("inet")
    except psutil.Error:
        return set()
    return {(own.laddr.ip, own.laddr.port) for own in found if own.status == psutil.CONN_LISTEN}


class LabsOnLoopback(Labs):
    """As `Labs`; a task fails the test where one of its ranks listens for other machines while it trains. `seen` are
    the addresses of the last task."""

    seen: set[str]

    def ask(self, task: Task, on_event: Any = lambda event: None) -> Answer:
        self.seen = found = set[str]()

        def look(event: Event) -> None:
            if not found:
                found.update(address for pid in self._rank_pids() for address, _ in listening_at(pid))
            on_event(event)

        answer = super().ask(task, look)
        assert found <= {LOOPBACK}, f"ranks listen at {sorted(found)}"
        return answer

    def _rank_pids(self) -> list[int]:
        """Those that write into a lab's folder: the lab may be a fork of the tests' own process."""
        folders, found = tuple(str(lab._scratch.path) for lab in list(self._labs.values())), []
        for pid in psutil.pids():
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/fd/1").startswith(folders):
                    found.append(pid)
        return found
