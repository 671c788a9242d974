"""Which arbiters a command looks at, and what they say."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from crossover.arbiter.listening import private_folder
from crossover.commands.usage import is_idle
from crossover.errors import ArbiterAbsent, ArbiterLost, Refused
from crossover.process import LINGER_S, clear_dead, default_path
from crossover.settings import Settings
from crossover.status import HostStatus, read_status


def look_at(given: Sequence[Path] | None) -> list[tuple[Path, HostStatus | None]]:
    """The sockets that were named; else those that are served, of this host's own and those beside it (emulated hosts
    share the folder), or where none is, its own."""
    if given:
        return [(path, status_at(path)) for path in given]
    own = default_path()
    found = [(path, status_at(path)) for path in sorted({own, *own.parent.glob("*.sock")})]
    return [(path, status) for path, status in found if status is not None] or [(own, None)]


def status_at(path: Path, *, limit_s: float = 2.0) -> HostStatus | None:
    """What the arbiter at `path` says; None where no process serves it or no answer comes in time. What a killed one
    has left there is removed.

    Raises `Refused` with the reason where the one that serves it does not speak to us.
    """
    try:
        return read_status(path, limit_s=limit_s)
    except ArbiterAbsent:
        clear_dead(path)
        return None
    except ArbiterLost:
        return None


@contextmanager
def sole_run(path: Path) -> Iterator[None]:
    """Hold this socket for one `crossover run` until the block ends, or the process.

    Two runs of the same jobs would share an arbiter, and each would count the other's turns as its own. Raises
    `Refused` where another run has it.
    """
    with private_folder(path.absolute().parent) as folder:
        fd = folder.append_to(f"{path.name}.log")  # the arbiter's log: it lies there anyway
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise Refused(f"another `crossover run` uses {path}: wait for it, or name another --socket") from error
        finally:
            os.close(fd)


def settle_socket(socket_path: str | None, settings: Settings, say: Callable[[str], None]) -> HostStatus | None:
    """Wait for an arbiter of earlier jobs to end; the status of one that stays and serves these settings, else None.

    Raises `Refused` when other jobs use the socket.
    """
    path = Path(socket_path) if socket_path else default_path()
    until_s = time.monotonic() + LINGER_S + 2.0
    told = False
    # an arbiter of earlier jobs has their settings, and ends by itself
    while (status := status_at(path)) is not None and is_idle(status) and time.monotonic() < until_s:
        if not told:
            say(f"crossover: waiting for the arbiter of earlier jobs at {path} to end")
            told = True
        time.sleep(0.1)
    if status is not None and status.settings != settings:
        raise Refused(
            f"{path} serves {', '.join(status.jobs)} under {status.sharing} already, with other settings: "
            "wait for them, or name another --socket"
        )
    return status
