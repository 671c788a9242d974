"""Short time slices for threads that communicate, so that they run when they wake.

A thread that moves messages works for microseconds and then sleeps; beside a computing thread on
the same core the kernel may let it wait for milliseconds. Since Linux 6.12 any thread may ask for
a shorter slice, which gives it an earlier deadline and takes nothing from the others' share
(EEVDF; sched_setattr(2), `sched_runtime` under SCHED_OTHER). Threads inherit it when they start.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

SLICE_NS = 100_000  # the shortest that the kernel takes
SYSCALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr


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


@contextmanager
def short_slices() -> Iterator[None]:
    """Within, this thread and those that it starts have short slices; where the kernel knows none,
    nothing changes."""
    before = _own_attributes()
    if before is None:
        yield
        return
    _set(before, SLICE_NS)
    try:
        yield
    finally:
        _set(before, before.runtime)


def _own_attributes() -> _Attributes | None:
    numbers = SYSCALLS.get(platform.machine())
    if platform.system() != "Linux" or numbers is None:
        return None
    found = _Attributes()
    size = ctypes.sizeof(found)
    failed = ctypes.CDLL(None).syscall(numbers[1], 0, ctypes.byref(found), size, 0)
    return None if failed or found.policy != 0 else found


def _set(attributes: _Attributes, runtime_ns: int) -> None:
    """A refusal leaves the slice as it was, which costs speed alone."""
    wanted = _Attributes.from_buffer_copy(attributes)
    wanted.size, wanted.runtime = ctypes.sizeof(wanted), runtime_ns
    ctypes.CDLL(None).syscall(SYSCALLS[platform.machine()][0], 0, ctypes.byref(wanted), 0)
