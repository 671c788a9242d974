"""The Linux system calls that Python 3.11 does not wrap, each raising OSError on failure."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move the calling thread into new namespaces of the kinds in `flags`."""
    _checked(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Move the calling thread into the namespace behind `fd`, which must be of `kind`."""
    _checked(_libc.setns(fd, kind), "setns")


def set_host_name(name: str) -> None:
    """Name the host of the calling thread's UTS namespace."""
    encoded = name.encode()
    _checked(_libc.sethostname(encoded, ctypes.c_size_t(len(encoded))), "sethostname")


def mount(source: str, target: str, filesystem: str, flags: int = 0) -> None:
    """Mount in the calling process's mount namespace."""
    status = _libc.mount(source.encode(), target.encode(), filesystem.encode(), ctypes.c_ulong(flags), None)
    _checked(status, f"mount {target}")


def detach(target: str) -> None:
    """Unmount `target` lazily: what is open or bound elsewhere stays."""
    _checked(_libc.umount2(target.encode(), MNT_DETACH), f"umount {target}")


def _checked(status: int, call: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
