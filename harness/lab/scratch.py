"""A private folder for logs and sockets of a lab or a paced script, owned by the process that holds its lock.

A process number would not do for an owner: seen from another process namespace (a container that shares /tmp) a live
owner looks dead, and a dead one's number is used again. The kernel lets go of a lock when its holder ends, however it
ends, and in every namespace.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from crossover.arbiter.listening import socket_place
from crossover.errors import Refused
from fabric.cluster import FabricError

PREFIX = "crossover-bench-lab-"
_NOT_OURS = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM)


class Scratch:
    """A new folder; `remove` deletes it. What killed owners have left is deleted first.

    Raises: FabricError if no folder is short enough for sockets, OSError.
    """

    def __init__(self) -> None:
        # Before making a folder, so that disks do not fill up with what killed runs have left.
        _sweep()
        self.path, self._lock_fd = _made()

    def remove(self) -> None:
        """Delete the folder and all in it. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _made() -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_place()))
        try:
            fd = _locked(path)
        except OSError:
            path.rmdir()
            raise
        if fd is not None:
            return path, fd
        # a sweep was quicker, and has taken the folder for abandoned before it was locked


def _place() -> Path:
    try:
        return socket_place()
    except Refused as error:
        raise FabricError(str(error)) from error


def _sweep() -> None:
    """Delete the folders of this user that nobody holds."""
    for path in _place().glob(f"{PREFIX}*"):
        fd = _locked(path)
        if fd is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(fd)


def _locked(path: Path) -> int | None:
    """A descriptor that locks the folder; None where somebody else does, or it is gone, a link, or another user's.
    Raises OSError for what is wrong with the machine, such as no descriptor that is left."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NOT_OURS:
            return None
        raise
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Between opening and locking another process may have deleted the folder, and a new one may have its name.
        opened, present = os.fstat(fd), path.lstat()
        if opened.st_ino == present.st_ino and opened.st_uid == os.geteuid():
            return fd
    except (BlockingIOError, FileNotFoundError):  # held, or deleted meanwhile
        pass
    os.close(fd)
    return None
