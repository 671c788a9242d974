"""The arbiter: one process a host that lends the tokens of its devices, and of its link, to jobs in turns. Linux only.

It is a process of its own because a thread inside a busy Python job hands over a hundred times later.

    python -m crossover.arbiter /run/user/1000/crossover/host.sock '{"jobs": ["resnet", "bert"]}'
"""

import argparse
import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from crossover.errors import CrossoverError, Refused
from crossover.listening import PrivateSocket
from crossover.server import Arbiter
from crossover.settings import Settings


def serve(path: str | os.PathLike[str], settings: Settings, parent_pid: int | None = None) -> None:
    """Serve at `path` until SIGTERM, or until process `parent_pid` is gone; prints `ready` when participants may come.

    The socket's folder is made if it is missing, and must be private (0700). The socket is removed at the end.
    """
    with PrivateSocket(Path(path)) as listener:
        arbiter = Arbiter(listener, settings)
        try:
            _stop_on_signals(arbiter, ignore_interrupt=parent_pid is not None)
            if parent_pid is not None:
                arbiter.watch(_parent_fd(parent_pid), arbiter.stop)
            gc.freeze()  # what is loaded stays; a collection through it would delay a hand-over
            print("ready", flush=True)
            arbiter.run()
        finally:
            arbiter.close()


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
    arbiter.watch(wake_fd, arbiter.stop)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN if ignore_interrupt else lambda *_: None)


def _parse(arguments: Sequence[str] | None) -> tuple[Path, Settings, int | None]:
    parser = argparse.ArgumentParser(prog="python -m crossover.arbiter", description="Lend a host's devices in turns.")
    add = parser.add_argument
    add("path", type=Path, help="Unix socket to serve, in a private folder")
    add("settings", help="JSON of crossover.settings.Settings: jobs in turn order, the same on every host; sharing; …")
    add("--parent", type=int, metavar="PID", help="end when this parent process does")
    given = parser.parse_args(arguments)
    return given.path, Settings.from_json(given.settings), given.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code (2: what was asked cannot be had)."""
    try:
        serve(*_parse(arguments))
    except (CrossoverError, OSError) as error:
        print(f"error: {error}", flush=True)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
