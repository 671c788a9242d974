"""A thread that notices when a turn rests too long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from math import inf


class RestWatch:
    """Calls `act` once each time `limit_s` seconds pass between `arm()` and `disarm()`.

    `act` runs in a thread of the watch's own, which starts at the first `arm`. It must look again whether there is
    still something to do, because `disarm` may come at the same moment. Arming costs no system call while the thread
    is asleep towards an earlier deadline: a job arms once per step.
    """

    def __init__(self, limit_s: float, act: Callable[[], None]) -> None:
        self.limit_s = limit_s
        self._act = act
        self._deadline_s = inf
        self._is_armed = threading.Event()
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def arm(self) -> None:
        """Let the time begin, from now."""
        self._deadline_s = time.monotonic() + self.limit_s
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="crossover-rest", daemon=True)
            self._thread.start()
        if not self._is_armed.is_set():
            self._is_armed.set()

    def disarm(self) -> None:
        """Nothing rests any more."""
        self._deadline_s = inf

    @property
    def is_due(self) -> bool:
        """Whether the time has passed, and nobody has disarmed."""
        return time.monotonic() >= self._deadline_s

    def stop(self) -> None:
        """End the thread. May be called again, and from the thread itself."""
        self.disarm()
        self._is_stopped.set()
        self._is_armed.set()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            self._is_armed.wait()
            # Cleared before the deadline is read: an `arm` that comes in between sets it again.
            self._is_armed.clear()
            while (left_s := self._deadline_s - time.monotonic()) < inf:
                if left_s <= 0:
                    self._act()
                    break
                if self._is_stopped.wait(left_s):
                    return
