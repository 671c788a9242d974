"""A Unix socket that only its owner can reach: private folder, private socket, one server a path.

Whoever starts an arbiter, or edits what a dead one left, holds the folder's lock meanwhile (`locked_folder`).
"""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crossover.errors import Refused

_BACKLOG = 128
_MAX_PATH_BYTES = 107  # sun_path less its final zero


class PrivateSocket:
    """A listening socket at a path for the length of a `with`; what a dead server left there is replaced.

    `folder_fd` is an inherited descriptor by which the folder is locked already; it is closed.
    Raises `Refused` for a folder that others may enter, and for a path that is too long, served already, or no socket.
    """

    def __init__(self, path: Path, folder_fd: int | None = None) -> None:
        check_path(path)
        self._path = path
        self._folder_fd = folder_fd
        self._inode = 0

    def __enter__(self) -> socket.socket:
        if self._folder_fd is None:
            with locked_folder(self._path.parent):  # two arbiters that start at once must not unlink each other's
                return self._serve()
        try:
            return self._serve()
        finally:
            os.close(self._folder_fd)

    def __exit__(self, *_: object) -> None:
        if self._path.exists() and self._path.stat().st_ino == self._inode:
            self._path.unlink()

    def _serve(self) -> socket.socket:
        self._clear_stale()
        listener = self._listen()
        self._inode = self._path.stat().st_ino
        return listener

    def _clear_stale(self) -> None:
        if not self._path.exists():
            return
        if not self._path.is_socket():
            raise Refused(f"{self._path} exists and is no socket: name another path")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            if probe.connect_ex(str(self._path)) == 0:
                raise Refused(f"an arbiter serves {self._path} already: use it, stop it, or name another path")
        self._path.unlink()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = os.umask(0o177)
        try:
            listener.bind(str(self._path))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener


@contextmanager
def locked_folder(folder: Path) -> Iterator[int]:
    """The private folder, made if it is missing and locked; its descriptor, which a child may inherit with the lock."""
    fd = _private_folder(folder)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def check_path(path: Path) -> None:
    """Raises `Refused` for a path that no socket can have."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise Refused(f"socket path {str(path)!r} is longer than {_MAX_PATH_BYTES} bytes: use a shorter folder")


def _private_folder(folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise Refused(f"{folder} must be yours and closed to others: chmod 700 it, or name a folder of your own")
    return fd
