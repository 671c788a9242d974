"""The arbiter's event loop: urgent descriptors first, the others one at a time, and one alarm.

Nothing is polled. What belongs to turns is urgent; clients that have not joined are not, and wait in an epoll set of
their own that the first set watches: between any two of their events every urgent one has been served.
"""

import select
import time
from collections.abc import Callable
from math import inf

React = Callable[[], None]
LONGEST_POLL_S = 3600.0  # epoll counts milliseconds in an int, and a user's limit may be a million seconds


class Loop:
    """Calls what was asked for when a descriptor is readable, and `ring` when the alarm is due, until `stop`."""

    def __init__(self) -> None:
        self._urgent = select.epoll()
        self._patient = select.epoll()
        self._urgent.register(self._patient.fileno(), select.EPOLLIN)
        self._reactions: dict[int, React] = {}
        self._sets: dict[int, select.epoll] = {}
        self._alarm_s = inf
        self._running = True

    def run(self, ring: Callable[[float], float]) -> None:
        """Serve. `ring(now_s)` is called at the alarm, and says when the next one is due."""
        reactions, patient_fd, poll = self._reactions, self._patient.fileno(), self._urgent.poll
        while self._running:
            left_s = None if self._alarm_s == inf else min(self._alarm_s - time.monotonic(), LONGEST_POLL_S)
            if left_s is not None and left_s <= 0:
                self._alarm_s = inf  # what `ring` sets in motion may call for an earlier one than it knows of
                self.wake_by(ring(time.monotonic()))
                continue
            has_patient = False
            for fd, _ in poll(left_s):
                if fd == patient_fd:
                    has_patient = True
                elif fd in reactions:  # else closed by an event before it
                    reactions[fd]()
            if has_patient:
                self._serve_one()

    def stop(self) -> None:
        """End after the events at hand."""
        self._running = False

    def watch(self, fd: int, react: React, *, urgent: bool) -> None:
        """Call `react` whenever `fd` is readable."""
        self._reactions[fd] = react
        self._sets[fd] = self._urgent if urgent else self._patient
        self._sets[fd].register(fd, select.EPOLLIN)

    def forget(self, fd: int) -> None:
        """Watch `fd` no more; call it before the descriptor is closed."""
        self._sets.pop(fd).unregister(fd)
        del self._reactions[fd]

    def wake_by(self, moment_s: float) -> None:
        """Look at the clock at `moment_s` (monotonic) or before."""
        self._alarm_s = min(self._alarm_s, moment_s)

    def close(self) -> None:
        """Give the descriptors back."""
        self._urgent.close()
        self._patient.close()

    def _serve_one(self) -> None:
        for fd, _ in self._patient.poll(0, 1):
            self._reactions[fd]()
