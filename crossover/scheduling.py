"""How the arbiter asks the kernel to run it in time. A refusal costs speed alone.

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


class Slices:
    """This thread's slices: short where there is more to run than cores, the usual ones elsewhere."""

    def __init__(self) -> None:
        self._call = ctypes.CDLL(None).syscall
        self._set_number, get_number = _SYSCALLS.get(platform.machine(), (0, 0))
        self._usual = _Attributes()
        size = ctypes.sizeof(self._usual)
        has_failed = not get_number or self._call(get_number, 0, ctypes.byref(self._usual), size, 0)
        self._are_known = not has_failed and self._usual.policy == 0 and _LOAD.exists()
        self._usual.size = size
        self._short = _Attributes.from_buffer_copy(self._usual)
        self._short.runtime = SLICE_NS
        self._are_short = False
        self._load_fd = os.open(_LOAD, os.O_RDONLY | os.O_CLOEXEC) if self._are_known else -1
        self._num_cores = os.cpu_count() or 1

    def adapt(self) -> None:
        """Look at what runs just now, beside this thread, and choose."""
        if not self._are_known:
            return
        num_running = int(os.pread(self._load_fd, 64, 0).partition(b"/")[0].split()[-1])
        should_be_short = num_running > self._num_cores
        if should_be_short != self._are_short:
            chosen = self._short if should_be_short else self._usual
            self._call(self._set_number, 0, ctypes.byref(chosen), 0)
            self._are_short = should_be_short


def lock_memory() -> None:
    """Keep what is in memory there, so that no turn waits for a page."""
    ctypes.CDLL(None).mlockall(_MCL_CURRENT)
