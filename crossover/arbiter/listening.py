"""A Unix socket that only its owner can reach: private folder, private socket, one server per path.

Everything in the folder is named relative to the folder's descriptor, and no symbolic link is followed: whoever can
rename what lies above the folder, or put a link in its place, still cannot make the owner write elsewhere. Whoever
starts an arbiter, or edits what a dead one left, holds the folder's lock meanwhile (`locked_folder`).
"""

import errno
import fcntl
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from crossover.errors import Refused, Unavailable

_BACKLOG = 128
_MAX_PATH_BYTES = 107  # sun_path less its final zero
_ROOM_BYTES = 60  # for the names of a private folder, one in it, and a socket
_MAX_TEXT_BYTES = 1 << 20  # no roster is longer: 64 tokens of 64 jobs
_CONNECT_LIMIT_S = 2
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # O_NONBLOCK: a named pipe must not hold the reader


@dataclass(frozen=True, slots=True)
class PrivateFolder:
    """A folder of the user's own that nobody else may enter, by its descriptor `fd`; `path` is what people read."""

    path: Path
    fd: int

    def address(self, name: str) -> str:
        """Where a socket of that name is bound or reached: through the descriptor; by the folder's path only on a
        machine without /proc."""
        descriptor = f"/proc/self/fd/{self.fd}"
        return f"{descriptor if os.path.exists(descriptor) else self.path}/{name}"

    def is_served(self, name: str) -> bool:
        """Whether the socket of that name is listened at. A stopped server counts."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            limit_connect(probe, _CONNECT_LIMIT_S)
            return probe.connect_ex(self.address(name)) != errno.ECONNREFUSED

    def mode_of(self, name: str) -> int | None:
        """File type and mode bits of what has that name, links not followed; None where nothing has."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None

    def inode_of(self, name: str) -> int:
        """The inode of what has that name; 0 where nothing has."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return 0

    def read(self, name: str) -> str:
        """A text file's content. Raises FileNotFoundError, `Refused` for a link or no file, and OSError."""
        fd = self._open(name, os.O_RDONLY)
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise Refused(f"{self.path / name} is no file: remove it")
            return file.read(_MAX_TEXT_BYTES)

    def replace(self, name: str, text: str) -> None:
        """Write a file in one step: a reader sees the old text or the new one. Raises OSError, `Refused` for a link."""
        part = f"{name}.part"
        self.remove(part)  # what a killed writer left
        fd = self._open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(fd, "w", encoding="utf-8") as file:
                file.write(text)
        except OSError:
            self.remove(part)  # a full disk: leave no half of a file
            raise
        os.rename(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def append_to(self, name: str) -> int:
        """A descriptor that appends to the file, made if it is missing. Raises OSError, `Refused` for a link."""
        return self._open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def remove(self, name: str) -> None:
        """Remove what has that name, if anything; of a link the link."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return

    def _open(self, name: str, flags: int) -> int:
        if (mode := self.mode_of(name)) is not None and stat.S_ISLNK(mode):
            raise Refused(f"{self.path / name} is a symbolic link, which is not followed: remove it")
        return os.open(name, flags | _SAFE, 0o600, dir_fd=self.fd)


class PrivateSocket:
    """A listening socket `name` in a private folder for the length of a `with`; what a dead server left is replaced.

    `lock_fd` is an inherited descriptor by which the folder is locked already; it is closed.
    Raises `Refused` for a name that is served already, or is no socket.
    """

    def __init__(self, folder: PrivateFolder, name: str, lock_fd: int | None = None) -> None:
        self._folder = folder
        self._name = name
        self._lock_fd = lock_fd
        self._inode = 0

    def __enter__(self) -> socket.socket:
        if self._lock_fd is None:
            self._lock_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._folder.fd)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)  # two arbiters that start at once must not unlink each other's
        try:
            return self._serve()
        finally:
            os.close(self._lock_fd)

    def __exit__(self, *_: object) -> None:
        if self._folder.inode_of(self._name) == self._inode:  # else a later arbiter has put its own there
            self._folder.remove(self._name)

    def _serve(self) -> socket.socket:
        self._clear_stale()
        listener = self._listen()
        self._inode = self._folder.inode_of(self._name)
        if not self._inode:
            raise Refused(f"{self._folder.path} was moved while an arbiter started in it: start it again")
        return listener

    def _clear_stale(self) -> None:
        path = self._folder.path / self._name
        if (mode := self._folder.mode_of(self._name)) is None:
            return
        if not stat.S_ISSOCK(mode):
            raise Refused(f"{path} exists and is no socket: name another path")
        if self._folder.is_served(self._name):
            raise Refused(f"an arbiter serves {path} already: use it, stop it, or name another path")
        self._folder.remove(self._name)

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = os.umask(0o177)
        try:
            listener.bind(self._folder.address(self._name))
        finally:
            os.umask(before)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        return listener


@contextmanager
def private_folder(path: Path) -> Iterator[PrivateFolder]:
    """The private folder, made if it is missing.

    Raises `Refused` for one that is a symbolic link, is another user's, is open to others or cannot be made.
    """
    fd = _open_folder(path)
    try:
        yield PrivateFolder(path, fd)
    finally:
        os.close(fd)


@contextmanager
def locked_folder(path: Path) -> Iterator[PrivateFolder]:
    """The private folder, locked; a child may inherit its descriptor, and with it the lock. Errors as of
    `private_folder`."""
    with private_folder(path) as folder:
        fcntl.flock(folder.fd, fcntl.LOCK_EX)
        yield folder


def socket_place() -> Path:
    """Where to make a private folder (`mkdtemp`) for sockets: the folder for temporary files, or another one of this
    machine where the name of that is too long for a socket's address, as TMPDIR may be under Slurm or CI.

    Raises `Refused` if there is none.
    """
    try:
        given = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise Refused(f"{error.strerror}: set TMPDIR to a folder that you can write") from error
    for place in (given, Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")):
        if len(os.fsencode(place)) <= _MAX_PATH_BYTES - _ROOM_BYTES and os.access(place, os.W_OK | os.X_OK):
            return place
    raise Refused(
        f"TMPDIR={given} is too long for sockets, whose folder may have {_MAX_PATH_BYTES - _ROOM_BYTES} bytes, and "
        "/tmp, /var/tmp and /dev/shm cannot be written: set TMPDIR to a short folder of your own"
    )


def check_path(path: Path) -> None:
    """Raises `Refused` for a path that no client could connect to."""
    if len(os.fsencode(path)) > _MAX_PATH_BYTES:
        raise Refused(f"socket path {str(path)!r} is longer than {_MAX_PATH_BYTES} bytes: use a shorter folder")


def limit_connect(sock: socket.socket, limit_s: float) -> None:
    """Have `connect` end with EAGAIN after `limit_s` seconds; 0 takes the limit away again.

    A stopped server's queue may be full. A socket timeout of Python's own does not help: on a Unix socket it makes
    `connect` fail at once where it had to wait.
    """
    whole_s, rest_s = divmod(limit_s, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(whole_s), int(rest_s * 1e6)))


def _open_folder(path: Path) -> int:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise Refused(f"{path} is a symbolic link, which is not followed: name the folder itself") from error
        raise Unavailable(f"folder {path} cannot be used ({error.strerror}): name a folder of your own") from error
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(fd)
        raise Refused(f"{path} must be yours and closed to others: chmod 700 it, or name a folder of your own")
    return fd
