"""Processes of a test: forked, and gone with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

Fork = Callable[[Callable[[], None]], int]  # runs something in a process of its own; answers with its number


def end(pid: int) -> None:
    """Kill it if it still runs, and reap it."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
