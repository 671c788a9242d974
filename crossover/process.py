"""Start an arbiter: as a process that ends with the one that started it, or as one that serves whoever comes."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from crossover.arbiter.listening import check_path, locked_folder
from crossover.arbiter.main import READY
from crossover.arbiter.roster import roster_path
from crossover.errors import ArbiterAbsent, ArbiterLost, Refused
from crossover.policies import Sharing
from crossover.settings import Settings
from crossover.status import HostStatus, read_status

LINGER_S = 5.0
_STOP_LIMIT_S = 2.0
_NUM_TRIES = 20
_HERE = str(Path(__file__).resolve().parent.parent)
_PROGRAM = f"import sys; sys.path.insert(0, {_HERE!r}); from crossover.arbiter.main import main; sys.exit(main())"


@dataclass(slots=True)
class ArbiterProcess:
    """A running arbiter; a context manager that stops it."""

    path: Path
    _process: subprocess.Popen[str] = field(repr=False)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process still lives."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it and remove its socket; participants get `ArbiterLost`. May be called again."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.path.unlink(missing_ok=True)
            roster_path(self.path).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()


def start(
    path: str | os.PathLike[str],
    jobs: Sequence[str] = ("a", "b"),
    sharing: Sharing = Sharing.CROSSOVER,
    **others: Any,
) -> ArbiterProcess:
    """Start an arbiter at socket `path` and return when it accepts participants.

    It watches this process and ends with it, whatever kills it. Arguments are those of `crossover.settings.Settings`.
    Raises `Refused` for settings that do not fit, and with the arbiter's own reason when it cannot start.
    """
    settings = Settings(jobs=tuple(jobs), sharing=sharing, **others)
    command = _command(f"--parent={os.getpid()}", "--", os.fspath(path), settings.to_json())
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    _await_ready(process, path)
    return ArbiterProcess(Path(path), process)


def ensure(path: str | os.PathLike[str], settings: Settings, *, linger_s: float = LINGER_S) -> HostStatus:
    """Use the arbiter that serves `path`, or start one there that is nobody's child; the status of either.

    It ends `linger_s` seconds after the last job has left, and writes what it has to say to `path`.log. Several jobs
    may call this at once: the lock of the folder lets one of them start it. Raises `Refused` where the arbiter that is
    there has other settings, or a new one cannot start.
    """
    check_path(Path(path))
    for _ in range(_NUM_TRIES):
        with suppress(ArbiterAbsent, ArbiterLost):
            return _checked(path, settings)
        with locked_folder(Path(path).absolute().parent) as folder_fd:
            with suppress(ArbiterAbsent, ArbiterLost):  # another job was quicker
                return _checked(path, settings)
            _start_detached(Path(path).absolute(), settings, linger_s, folder_fd)
    raise ArbiterAbsent(f"{_NUM_TRIES} arbiters in a row began and died at {os.fspath(path)}: look into {path}.log")


def default_path() -> Path:
    """Where this user's arbiter of this host is found: $CROSSOVER_SOCKET, or a socket of the host's name in a private
    folder, so that hosts which share a file system stay apart."""
    if given := os.environ.get("CROSSOVER_SOCKET"):
        return Path(given)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "crossover" if runtime else Path(f"/tmp/crossover-{os.geteuid()}")
    return folder / f"{socket.gethostname()}.sock"


def _checked(path: str | os.PathLike[str], settings: Settings) -> HostStatus:
    status = read_status(path)
    if status.settings != settings:
        raise Refused(
            f"the arbiter at {os.fspath(path)} (process {status.pid}) has settings {status.settings.to_json()}, and "
            f"{settings.to_json()} is wanted: use the same settings in every job, or another path"
        )
    return status


def _start_detached(path: Path, settings: Settings, linger_s: float, folder_fd: int) -> None:
    log_fd = os.open(f"{path}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            _command(f"--linger={linger_s}", f"--folder-fd={folder_fd}", "--", str(path), settings.to_json()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            text=True,
            start_new_session=True,
            pass_fds=(folder_fd,),
        )
    finally:
        os.close(log_fd)
    _await_ready(process, path)
    process.wait()  # it has left a child behind


def _await_ready(process: subprocess.Popen[str], path: str | os.PathLike[str]) -> None:
    assert process.stdout is not None
    with process.stdout as announcements:
        first_line = announcements.readline().strip()
    if first_line != READY:
        code = process.wait()
        raise Refused(f"the arbiter at {os.fspath(path)} did not start: {first_line or f'it ended with code {code}'}")


def _command(*options: str) -> list[str]:
    """The arbiter needs this package and the standard library, and nothing of the environment or of `site`."""
    return [sys.executable, "-S", "-E", "-P", "-c", _PROGRAM, *options]
