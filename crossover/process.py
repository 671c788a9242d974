"""Start an arbiter: as a process that ends with the one that started it, or as one that serves whoever comes."""

import fcntl
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

from crossover.arbiter.listening import PrivateFolder, check_path, limit_connect, locked_folder, private_folder
from crossover.arbiter.main import READY, REFUSED
from crossover.arbiter.roster import RosterFile, may_live, process_state
from crossover.errors import ArbiterAbsent, ArbiterLost, Refused, Unavailable
from crossover.policies import Sharing
from crossover.protocol import peer
from crossover.settings import Settings
from crossover.status import HostStatus, read_status

LINGER_S = 5.0
_STOP_LIMIT_S = 2.0
_NUM_TRIES = 20
_PROBE_LIMIT_S = 1.0
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
        if self._process.returncode:  # killed, by whomever: it could not tidy up after itself
            clear_dead(self.path, are_jobs_over=True)

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
    # participants may be started as soon as this returns
    _await_ready(process, path)
    return ArbiterProcess(Path(path), process)


def ensure(path: str | os.PathLike[str], settings: Settings, *, linger_s: float = LINGER_S) -> HostStatus:
    """Use the arbiter that serves `path`, or start one there that is nobody's child; the status of either.

    It ends `linger_s` seconds after the last job has left, and writes what it has to say to `path`.log. Several jobs
    may call this at once: the lock of the folder lets one of them start it. Raises `Refused` where the arbiter that is
    there has other settings, or a new one cannot start, and `ArbiterLost` where one is there and does not answer.
    """
    wanted = Path(path).absolute()
    check_path(wanted)
    silent: ArbiterLost | None = None
    for _ in range(_NUM_TRIES):
        if silent is not None and (pid := _stopped_server(wanted)):
            raise ArbiterLost(f"the arbiter at {wanted} (process {pid}) is stopped: `kill -CONT {pid}`") from silent
        try:
            return _checked(path, settings)
        except ArbiterLost as error:
            silent = error  # it ends just now, is stopped, or the machine is very busy
            continue
        except ArbiterAbsent:
            silent = None
        with locked_folder(wanted.parent) as folder:
            with suppress(ArbiterAbsent, ArbiterLost):  # another job was quicker
                return _checked(path, settings)
            # still under the lock, which the arbiter gets with the descriptor
            _start_detached(wanted, settings, linger_s, folder)
    if silent is not None:
        raise silent
    raise ArbiterAbsent(f"{_NUM_TRIES} arbiters in a row began and died at {wanted}: look into {wanted}.log")


def clear_dead(path: Path, *, are_jobs_over: bool = False) -> None:
    """Remove the socket that a killed arbiter has left at `path`, and its roster once no process on it lives.

    Nothing where an arbiter serves it or starts there just now, or the folder cannot be used.
    """
    if not path.is_socket():
        return
    with suppress(Refused, OSError), private_folder(path.absolute().parent) as folder:
        fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.is_served(path.name):
            return
        folder.remove(path.name)
        roster_file = RosterFile(folder, path.name)
        roster = None if are_jobs_over else roster_file.read()
        if roster is None or not any(map(may_live, roster.entries)):
            roster_file.remove()


def default_path() -> Path:
    """Where this user's arbiter of this host is found: $CROSSOVER_SOCKET, or a socket of the host's name in a private
    folder, so that hosts which share a file system stay apart.

    The folder is in $XDG_RUNTIME_DIR where that is a folder of this user's. Slurm, su and cron hand on one that is
    missing or another user's: then it is in /tmp, and `runtime_folder_remark` says so.
    """
    if given := os.environ.get("CROSSOVER_SOCKET"):
        return Path(given)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    usable = runtime and runtime_folder_remark() is None
    folder = Path(str(runtime)) / "crossover" if usable else Path(f"/tmp/crossover-{os.geteuid()}")
    return folder / f"{socket.gethostname()}.sock"


def runtime_folder_remark() -> str | None:
    """Why $XDG_RUNTIME_DIR is not used, in one line; None where it is, or is not set."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if not runtime or os.environ.get("CROSSOVER_SOCKET"):
        return None
    try:
        is_own = Path(runtime).is_absolute() and Path(runtime).stat().st_uid == os.geteuid() and Path(runtime).is_dir()
    except OSError:
        is_own = False
    return None if is_own else f"XDG_RUNTIME_DIR={runtime} is no folder of yours: using /tmp/crossover-{os.geteuid()}"


def _checked(path: str | os.PathLike[str], settings: Settings) -> HostStatus:
    status = read_status(path)
    if status.settings != settings:
        raise Refused(
            f"the arbiter at {os.fspath(path)} (process {status.pid}) has settings {status.settings.to_json()}, and "
            f"{settings.to_json()} is wanted: use the same settings in every job, or another path"
        )
    return status


def _stopped_server(path: Path) -> int:
    """The process that serves the socket, if it is stopped (SIGSTOP, Ctrl-Z); else 0.

    It answers nobody, but the kernel still says who listens.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            limit_connect(probe, _PROBE_LIMIT_S)
            probe.connect(os.fspath(path))
            pid, _ = peer(probe)
    except OSError:
        return 0
    return pid if process_state(pid) == "T" else 0


def _start_detached(path: Path, settings: Settings, linger_s: float, folder: PrivateFolder) -> None:
    log_fd = _open_log(folder, f"{path.name}.log")
    try:
        process = subprocess.Popen(
            _command(f"--linger={linger_s}", f"--folder-fd={folder.fd}", "--", str(path), settings.to_json()),
            # it outlives this job, so it must hold none of its terminal or pipes
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log_fd,
            text=True,
            start_new_session=True,
            pass_fds=(folder.fd,),
        )
    except OSError as error:
        raise Unavailable(
            f"no arbiter can be started at {path} ({error.strerror}): free descriptors or memory"
        ) from error
    finally:
        os.close(log_fd)
    _await_ready(process, path)
    process.wait()  # it has left a child behind


def _open_log(folder: PrivateFolder, name: str) -> int:
    """The log, or nowhere where the disk has no room for it: turns matter more."""
    try:
        return folder.append_to(name)
    except OSError as error:
        print(f"crossover: no log {folder.path / name} ({error.strerror})", file=sys.stderr, flush=True)
        return os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)


def _await_ready(process: subprocess.Popen[str], path: str | os.PathLike[str]) -> None:
    assert process.stdout is not None
    with process.stdout as announcements:
        first_line = announcements.readline().strip()
    # the arbiter's own reason, which it says before it can serve anybody
    if first_line != READY:
        code = process.wait()
        kind = Refused if first_line.startswith(REFUSED) else Unavailable
        raise kind(f"the arbiter at {os.fspath(path)} did not start: {first_line or f'it ended with code {code}'}")


def _command(*options: str) -> list[str]:
    """The arbiter needs this package and the standard library, and nothing of the environment or of `site`."""
    return [sys.executable, "-S", "-E", "-P", "-c", _PROGRAM, *options]
