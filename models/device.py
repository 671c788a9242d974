"""The virtual device: what stands in for a host's accelerator when compute is replayed.

`VirtualDevice.local()` serves one process that has the device to itself, alone or under a lease: it waits
here, until absolute deadlines. `VirtualDevice.connect(path)` shares one device among the processes
of a host, which a server holds (`serve`); each progresses at 1/n while n have work.

Work follows work. A real host launches ahead, so a device goes from one layer to the next without
a pause. Here work starts where the last one ended, not when the waiting thread woke up or got a processor again, so
what the host loses between two layers never accumulates. Only where computation really had to wait, for messages or
for an update, is there a pause: a step's first layer, and whatever follows `pause`. A host that comes later
than `slack_s` was busy with something else. Waiting releases the interpreter lock and uses no CPU.
"""

from __future__ import annotations

import ctypes
import math
import os
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

DEFAULT_SLACK_S = 0.05

# A flow of the client's, seconds of work and whether it follows the flow's last one; the answer is the flow.
REQUEST = struct.Struct("<Id?")
ANSWER = struct.Struct("<I")

_PR_SET_PDEATHSIG = 1
_PR_SET_TIMERSLACK = 29
_TIMER_SLACK_NS = 1  # the kernel's default of 50 µs would come on top of every wait
_sharp = threading.local()


class DeviceError(ValueError):
    """The shared device cannot be reached or is gone; the message names the socket and the remedy."""


class VirtualDevice(ABC):
    """Takes device time for pieces of work. Threads of one process queue up behind each other."""

    def __init__(self, slack_s: float) -> None:
        self._slack_s = slack_s
        self._returned_at_s = -math.inf

    @staticmethod
    def local(*, slack_s: float = DEFAULT_SLACK_S) -> VirtualDevice:
        """A device of this process alone."""
        return _LocalDevice(slack_s)

    @staticmethod
    def connect(path: Path, *, slack_s: float = DEFAULT_SLACK_S) -> VirtualDevice:
        """The host's shared device behind the socket `path`. Raises: DeviceError if none serves there."""
        return _SharedDevice(path, slack_s)

    def run(self, seconds: float) -> None:
        """Return when `seconds` of device time have been served. Raises: ValueError unless 0 ≤ seconds < ∞."""
        with self.take(seconds):
            pass

    @abstractmethod
    def take(self, seconds: float) -> AbstractContextManager[None]:
        """Like `run`, with the body of the `with` running meanwhile: what the host does under the device's time."""

    def interrupt(self, seconds: float) -> AbstractContextManager[None]:
        """Like `take`, by another thread and at once: for so long the device leaves the piece of work that it has, if
        any, and that ends as much later. What a codec does beside backward. A device that cannot, queues it up."""
        return self.take(seconds)

    @abstractmethod
    def close(self) -> None:
        """Leave the device; it must not be used afterwards."""

    def pause(self) -> None:
        """What comes next could not have been launched ahead: it starts when it is asked for."""
        self._returned_at_s = -math.inf

    def __deepcopy__(self, memo: object) -> Self:
        """A copy of a model computes on the same device."""
        return self

    def _follows(self) -> bool:
        return time.monotonic() - self._returned_at_s < self._slack_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _LocalDevice(VirtualDevice):
    def __init__(self, slack_s: float) -> None:
        super().__init__(slack_s)
        self._free_at_s = -math.inf
        self._interrupted_until_s = -math.inf
        self._lost_s = 0.0  # to interruptions, so far
        self._lock = threading.Lock()

    @contextmanager
    def take(self, seconds: float) -> Iterator[None]:
        _check(seconds)
        with self._lock:
            now_s = time.monotonic()
            queued = self._free_at_s > now_s
            start_s = self._free_at_s if queued or self._follows() else now_s
            start_s, lost_s = max(start_s, self._interrupted_until_s), self._lost_s
            self._free_at_s = deadline_s = start_s + seconds
        yield
        sleep_until(deadline_s)
        while self._lost_s > lost_s:  # interrupted meanwhile, perhaps more than once
            deadline_s, lost_s = deadline_s + self._lost_s - lost_s, self._lost_s
            sleep_until(deadline_s)
        self._returned_at_s = time.monotonic()

    @contextmanager
    def interrupt(self, seconds: float) -> Iterator[None]:
        _check(seconds)
        with self._lock:
            now_s = time.monotonic()
            if self._free_at_s > now_s:
                self._free_at_s += seconds
                self._lost_s += seconds
            self._interrupted_until_s = end_s = max(now_s, self._interrupted_until_s) + seconds
        yield
        sleep_until(end_s)

    def close(self) -> None:
        self._free_at_s = -math.inf


class _SharedDevice(VirtualDevice):
    def __init__(self, path: Path, slack_s: float) -> None:
        super().__init__(slack_s)
        self._path = path
        self._aside: _SharedDevice | None = None
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(str(path))
        except OSError as error:
            self._socket.close()
            raise DeviceError(
                f"no shared device at {path} ({error.strerror or error}); start one with "
                f"`python -m models.device_server {path}`"
            ) from error

    @contextmanager
    def take(self, seconds: float) -> Iterator[None]:
        _check(seconds)
        with self._lock:
            self._submit(seconds)
            yield
            self._await()
            self._returned_at_s = time.monotonic()

    @contextmanager
    def interrupt(self, seconds: float) -> Iterator[None]:
        """As a client of its own, so the device's time is shared with whatever else has work."""
        if self._aside is None:
            self._aside = _SharedDevice(self._path, 0.0)
        with self._aside.take(seconds):
            yield

    def _submit(self, seconds: float) -> None:
        try:
            self._socket.sendall(REQUEST.pack(0, seconds, self._follows()))
        except OSError as error:
            raise self._gone() from error

    def _await(self) -> None:
        try:
            answer = self._socket.recv(ANSWER.size)
        except OSError as error:
            raise self._gone() from error
        if len(answer) != ANSWER.size:
            raise self._gone()

    def _gone(self) -> DeviceError:
        return DeviceError(f"the shared device at {self._path} has ended; run the trial again")

    def close(self) -> None:
        if self._aside is not None:
            self._aside.close()
        self._socket.close()


def sleep_until(deadline_s: float) -> None:
    """Sleep until `time.monotonic()` reaches `deadline_s`, as sharply as the kernel can."""
    sharpen_timer()
    while (left_s := deadline_s - time.monotonic()) > 0:
        time.sleep(left_s)


def sharpen_timer() -> None:
    """Take the kernel's timer slack off the calling thread, once."""
    if not getattr(_sharp, "done", False):
        _prctl(_PR_SET_TIMERSLACK, _TIMER_SLACK_NS)
        _sharp.done = True


def die_with_parent(signal_number: int, parent: int) -> None:
    """Have the kernel send `signal_number` to this process when process `parent`, which started it, ends (Linux)."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent:  # it ended before the kernel was told
        os.kill(os.getpid(), signal_number)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option} failed")


def _check(seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{seconds!r} s of device time asked; it must be finite and not negative")
