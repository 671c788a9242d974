"""What a job runs under: `python leash.py COMMAND…` ends the whole of it, whatever the job has started.

Standard input is a pipe that only `crossover run` holds. A byte on it is a signal for the job's process group; its end,
however `crossover run` ended, is SIGKILL for every process the job has left. The leash adopts the orphans of its job
(launchers start ranks in sessions of their own), so none gets away. An arbiter that a rank has started is spared: it
serves other jobs too, and ends by itself.

Runs as a script, on the standard library alone, so that it starts in a few milliseconds.
"""

import ctypes
import os
import select
import signal
import sys
import time

KILLED = 128  # what a shell adds to the number of the signal that ended a command
NOT_FOUND = 127
ARBITER = b"crossover.arbiter"
LAST_WORDS_S = 0.5  # for what the job's end has already told to end
GIVE_UP_S = 30.0  # on a process that the kernel cannot end, such as one in a dead file system
_PR_SET_CHILD_SUBREAPER = 36


def attend(command: list[str]) -> int:
    """Run `command` in a session of its own until it ends or the pipe does; its exit code as a shell would give it."""
    _adopt_orphans()
    wake_fd = _wake_on_child()
    try:
        child = _start(command)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND
    code = None
    while code is None and _pass_on(child, wake_fd):
        code = _reap(child)
    _end_the_rest(LAST_WORDS_S if code is not None else 0.0)
    return KILLED + signal.SIGKILL if code is None else code


def _adopt_orphans() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _wake_on_child() -> int:
    """A descriptor that becomes readable when a child has ended. Signals for the terminal's group are the job's own."""
    wake_fd, signal_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signal_fd, warn_on_full_buffer=False)
    for name in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: None)
    return wake_fd


def _start(command: list[str]) -> int:
    # a group and not a session: a session's automatic scheduling group splits its weight over the cores by load, and a
    # worker that communicates beside another job's computation would wait for the whole of it
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawnp(command[0], command, os.environ, setpgroup=0, file_actions=[no_input])


def _pass_on(child: int, wake_fd: int) -> bool:
    """Wait for something to happen, and send on the signals that have come; False when the pipe has ended."""
    readable, _, _ = select.select([0, wake_fd], [], [])
    if wake_fd in readable:
        os.read(wake_fd, 4096)
    if 0 not in readable:
        return True
    numbers = os.read(0, 64)
    for number in numbers:
        try:
            os.killpg(child, number)  # not reaped yet, so the number is still its own
        except ProcessLookupError:
            return True
    return bool(numbers)


def _reap(child: int) -> int | None:
    """Bury whoever has ended; the exit code once the job's own process is among them."""
    code = None
    for pid, status in _ended():
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
    return KILLED - code if code is not None and code < 0 else code


def _ended() -> list[tuple[int, int]]:
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.append((pid, status))


def _end_the_rest(patience_s: float) -> None:
    """SIGKILL for every process under the leash that does not end by itself in time, until there is none."""
    began_s = time.monotonic()
    while rest := [pid for pid in descendants(os.getpid()) if not _is_arbiter(pid)]:
        waited_s = time.monotonic() - began_s
        if waited_s > GIVE_UP_S:
            return
        for pid in rest if waited_s >= patience_s else ():
            _kill(pid)
        time.sleep(0.01)
        _ended()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # gone, or another user's by its own will
        return


def descendants(ancestor: int) -> list[int]:
    """Process ids of all who live and descend from `ancestor`."""
    parents = {pid: parent for pid in _processes() if (parent := _parent(pid)) is not None}
    found: list[int] = []
    frontier = {ancestor}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found += frontier
    return found


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _parent(pid: int) -> int | None:
    """Its parent's number; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if state in (b"Z", b"X") and int(parent) != os.getpid() else int(parent)


def _is_arbiter(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return ARBITER in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


if __name__ == "__main__":
    sys.exit(attend(sys.argv[1:]))
