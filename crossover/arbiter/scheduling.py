"""How the arbiter, and threads that communicate, ask the kernel to run them in time. A refusal costs speed alone.

The arbiter works for microseconds and sleeps. Beside a computing thread on the same core a kernel may let it wait for
milliseconds: since Linux 6.12 a thread may ask for a shorter slice, which gives it an earlier deadline and takes
nothing from the others' share (EEVDF; sched_setattr(2), `sched_runtime` under SCHED_OTHER).

On an idle machine that harms. The arbiter then runs before the job that releases has gone to sleep, so the kernel
finds that core taken and wakes the next job on another, sleeping one: measured on two virtual cores, 40 µs a hand-over
where it is 20 µs with the usual slice. With both cores busy it is the other way round, 25 µs against 40 µs.
"""

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SLICE_NS = 100_000  # the shortest that the kernel takes
_SYSCALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_MCL_CURRENT = 1  # not MCL_FUTURE: beyond a memory limit it would turn later allocations into failures
_LOAD = Path("/proc/loadavg")


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


class TimeSlices:
    """This thread's slices: short where there is more to run than cores, the usual ones elsewhere."""

    def __init__(self) -> None:
        self._usual = _own_attributes()
        self._are_short = False
        try:
            self._load_fd = os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # no /proc, or only its processes: the usual slices then
            self._usual = None
        self._num_cores = os.cpu_count() or 1

    def adapt(self) -> None:
        """Look at what runs just now, beside this thread, and choose."""
        if self._usual is None:
            return
        num_running = int(os.pread(self._load_fd, 64, 0).partition(b"/")[0].split()[-1])
        should_be_short = num_running > self._num_cores
        if should_be_short != self._are_short:
            _set_slice(self._usual, SLICE_NS if should_be_short else self._usual.runtime)
            self._are_short = should_be_short


@contextmanager
def short_slices() -> Iterator[None]:
    """Within, this thread and those that it starts have short slices, which is right for threads that communicate
    beside computing ones; where the kernel knows none, nothing changes."""
    usual = _own_attributes()
    if usual is None:
        yield
        return
    _set_slice(usual, SLICE_NS)
    try:
        yield
    finally:
        _set_slice(usual, usual.runtime)


def _own_attributes() -> _Attributes | None:
    """This thread's, or None where the kernel tells nothing or another policy holds."""
    numbers = _SYSCALLS.get(platform.machine())
    if platform.system() != "Linux" or numbers is None:
        return None
    found = _Attributes()
    size = ctypes.sizeof(found)
    failed = ctypes.CDLL(None).syscall(numbers[1], 0, ctypes.byref(found), size, 0)
    return None if failed or found.policy != 0 else found


def _set_slice(usual: _Attributes, runtime_ns: int) -> None:
    """A refusal leaves the slice as it was."""
    wanted = _Attributes.from_buffer_copy(usual)
    wanted.size, wanted.runtime = ctypes.sizeof(wanted), runtime_ns
    ctypes.CDLL(None).syscall(_SYSCALLS[platform.machine()][0], 0, ctypes.byref(wanted), 0)


def lock_memory() -> None:
    """Keep what is in memory there, so that no turn waits for a page."""
    ctypes.CDLL(None).mlockall(_MCL_CURRENT)
