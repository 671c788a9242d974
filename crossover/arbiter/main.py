"""The arbiter: one process a host that lends the tokens of its devices, and of its link, to jobs in turns. Linux only.

It is a process of its own because a thread inside a busy Python job hands over a hundred times later.

    python -m crossover.arbiter /run/user/1000/crossover/host.sock '{"jobs": ["resnet", "bert"]}'

Beside its socket lies its roster (`crossover.arbiter.roster`), which is gone when it ends after its jobs. With
`--linger` it is nobody's child: it ends that long after the last job has left.
"""

import argparse
import gc
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

from crossover.arbiter.listening import PrivateFolder, PrivateSocket, check_path, private_folder
from crossover.arbiter.roster import Roster, RosterFile, may_live
from crossover.arbiter.scheduling import TimeSlices, lock_memory
from crossover.arbiter.server import Arbiter
from crossover.errors import CrossoverError, Refused, Unavailable
from crossover.settings import Settings

READY, REFUSED = "ready", "error: "  # what it says first; any other word is about the machine
WANTED_FILES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """How long an arbiter serves: until SIGTERM, until process `parent_pid` is gone, or until nobody has had a seat for
    `linger_s` seconds, whichever is first."""

    parent_pid: int | None = None
    linger_s: float = inf


def serve(path: str | os.PathLike[str], settings: Settings, life: Life, folder_fd: int | None = None) -> None:
    """Serve at `path`; prints `ready` when participants may come.

    The socket's folder is made if it is missing, and must be private (0700); `folder_fd` is a descriptor by which a
    parent has opened and locked it. The socket is removed at the end, and the roster if no job sits here. What a dead
    arbiter left is taken over: raises `Refused` where that one had other settings and some of its jobs still run.
    """
    path = Path(path)
    # bound through a descriptor even a longer path would do, but no client could connect to it
    check_path(path)
    _raise_file_limit()
    with ExitStack() as stack:
        folder = _opened(path.parent, folder_fd, stack)
        roster_file = RosterFile(folder, path.name)
        listener = stack.enter_context(PrivateSocket(folder, path.name, folder_fd))
        arbiter = Arbiter(
            listener,
            settings,
            roster_file=roster_file,
            roster=_inherited(roster_file, settings),
            linger_s=life.linger_s,
            adapt=TimeSlices().adapt,
        )
        try:
            _stop_on_signals(arbiter, ignore_interrupt=life.parent_pid is not None)
            if life.parent_pid is not None:
                arbiter.loop.watch(_parent_fd(life.parent_pid), arbiter.stop, urgent=True)
            _make_ready()
            arbiter.run()
        except OSError as error:
            with suppress(OSError):
                print(f"crossover: the arbiter at {path} ends: {error}", file=sys.stderr, flush=True)
            raise
        finally:
            are_jobs_left = arbiter.has_seats_taken and life.parent_pid is None  # a parent's jobs end with it
            arbiter.close()
            if not are_jobs_left:
                roster_file.remove()


def _opened(path: Path, folder_fd: int | None, stack: ExitStack) -> PrivateFolder:
    """The folder for as long as the arbiter serves. A parent's descriptor carries its lock, so another one of the very
    same folder is kept: by the path somebody might have put another there meanwhile."""
    if folder_fd is None:
        return stack.enter_context(private_folder(path))
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder_fd)
    stack.callback(os.close, fd)
    return PrivateFolder(path, fd)


def _raise_file_limit() -> None:
    """Every seat takes two descriptors; shells often allow 1024 where 524288 may be had."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _make_ready() -> None:
    # what start-up has left is gathered while nobody waits
    gc.collect()
    gc.freeze()
    gc.disable()  # nothing here makes cycles, and a collection would delay a hand-over
    lock_memory()
    # before anybody is told: afterwards there may be no descriptor left
    silence = os.open(os.devnull, os.O_WRONLY)
    with suppress(BrokenPipeError):  # who started it has died meanwhile: others may come
        print(READY, flush=True)
    os.dup2(silence, sys.stdout.fileno())  # who waited for it has closed the other end
    os.close(silence)


def _inherited(roster_file: RosterFile, settings: Settings) -> Roster | None:
    roster = roster_file.read()
    if roster is None or roster.settings == settings:
        return roster
    for entry in roster.entries:
        if may_live(entry) and entry.pid:
            has, wanted = roster.settings.to_json(), settings.to_json()
            raise Refused(
                f"{roster_file} says that job {entry.job!r} (process {entry.pid}) runs with {has}, not {wanted}: use "
                "the same settings, or end that job"
            )
    return None


def _parent_fd(parent_pid: int) -> int:
    fd = os.pidfd_open(parent_pid)
    if os.getppid() != parent_pid:  # it died before the descriptor was open, and the number may be another's
        os.close(fd)
        raise Refused(f"process {parent_pid} is not this arbiter's parent: start it from that process")
    return fd


def _stop_on_signals(arbiter: Arbiter, *, ignore_interrupt: bool) -> None:
    """SIGTERM ends the loop. Ctrl-C reaches the whole group: a child leaves it to its parent to end things in order."""
    wake_fd, signal_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signal_fd)
    arbiter.loop.watch(wake_fd, arbiter.stop, urgent=True)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignore_interrupt else lambda *_: None)


def _detach() -> None:
    """Become nobody's child, so that no job has to bury it, and let go of the folder one was started from."""
    if os.fork():
        os._exit(0)
    os.chdir("/")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m crossover.arbiter", description="Lend a host's devices in turns.")
    add = parser.add_argument
    add("path", type=Path, help="Unix socket to serve, in a private folder")
    add("settings", help="JSON of crossover.settings.Settings: jobs in turn order, the same on every host; sharing; …")
    add("--parent", type=int, metavar="PID", help="end when this parent process does")
    add("--linger", type=float, metavar="S", help="detach, and end S seconds after the last job has left")
    add("--folder-fd", type=int, metavar="FD", help="inherited descriptor by which the socket's folder is locked")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code (2: what was asked cannot be had)."""
    given = _parser().parse_args(arguments)
    # the kernel sends it where the starter of a stopped arbiter dies (an orphaned group), and no terminal is its own
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        settings = Settings.from_json(given.settings)
        path = given.path.absolute()
        # before any descriptor or lock is taken, which the parent would keep too
        if given.linger is not None:
            _detach()
        life = Life(parent_pid=given.parent, linger_s=inf if given.linger is None else given.linger)
        serve(path, settings, life, given.folder_fd)
    except (CrossoverError, OSError) as error:
        is_refused = isinstance(error, CrossoverError) and not isinstance(error, Unavailable)
        print(f"{REFUSED if is_refused else 'unavailable: '}{error}", flush=True)
        return 2
    return 0
