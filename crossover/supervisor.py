"""Runs one command until it ends, is ended, or whoever asked for it is gone; then nothing of it is left.

    python supervisor.py --control COMMAND…      a job of `crossover run`
    python supervisor.py --parent=PID COMMAND…   what must end with process PID, which starts this
    python supervisor.py --grace=S COMMAND…      what may tidy up for S seconds after a SIGTERM
    python supervisor.py COMMAND…                process 1 of a process namespace

With `--control` standard input is a pipe that only the one who asked holds. A byte on it is a signal for the command's
process group; its end, however it came, is SIGKILL for every process the command has left. With `--parent` the end of
that process is, and so is a SIGTERM. With `--grace` the first SIGTERM is passed on to every process below instead, and
SIGKILL comes S seconds later, or with a second one. SIGINT and SIGHUP of a terminal reach the command as well. If it
has not ended after two thirds of the grace, they have the effect of a SIGTERM, with the last third left.

Every process below is a descendant, because the supervisor adopts orphans (launchers start ranks in sessions of their
own), and so none gets away. If the supervisor itself is killed, the kernel kills the command with it, and the orphans
fall to the next supervising process above, which ends them (`end_descendants`). An arbiter that a rank has started is
spared: it serves other jobs too, and ends by itself.

Run by its path, on the standard library alone, so that it starts in a few milliseconds wherever the caller stands.
"""

import ctypes
import math
import os
import select
import signal
import sys
import time
from collections.abc import Collection

KILLED = 128  # what a shell adds to the number of the signal that ended a command
NOT_FOUND = 127
ARBITER = b"crossover.arbiter"
LAST_WORDS_S = 0.5  # for what the command's end has already told to end
GIVE_UP_S = 30.0  # on a process that the kernel cannot end, such as one in a dead file system
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def supervised(*options: str) -> list[str]:
    """The words to put before a command so that a supervisor runs it; isolated from the caller's environment."""
    return [sys.executable, "-I", "-S", __file__, *options, "--"]


def ending_with_me() -> str:
    """The option by which a supervisor that this process starts ends with it."""
    return f"--parent={os.getpid()}"


def granting(grace_s: float) -> str:
    """The option by which a supervisor that gets SIGTERM leaves its command so many seconds to tidy up."""
    return f"--grace={grace_s}"


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill the calling process when the thread that started it ends.

    The setting survives exec, not fork. `parent_pid` tells a parent that had died before the call.
    Raises OSError.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans(*, adopt: bool = True) -> None:
    """Become, or cease to be, the parent of all descendants whose own parents have ended. Raises OSError."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def descendants(ancestor: int) -> list[int]:
    """Process ids of all who live and descend from `ancestor`."""
    parents = {pid: parent for pid in _processes() if (parent := _parent(pid)) is not None}
    found: list[int] = []
    frontier = {ancestor}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found += frontier
    return found


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the program's name; none where the process cannot be seen.

    The name may hold spaces, and half a character: the kernel cuts it after 15 bytes.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode("ascii").split()
    except OSError:  # gone, another user's (hidepid), or no /proc at all
        return []


def end_descendants(patience_s: float = 0.0, spared: Collection[int] = ()) -> None:
    """SIGKILL for every descendant of this process that does not end by itself in `patience_s`, until there is none.

    Arbiters are left alone, and so are the processes in `spared` and their descendants.
    """
    began_s = time.monotonic()
    while rest := _to_end(spared):
        waited_s = time.monotonic() - began_s
        if waited_s > GIVE_UP_S:
            return
        for pid in rest:
            if waited_s >= patience_s:
                _send(pid, signal.SIGKILL)
            _bury(pid)
        time.sleep(0.01)


def _to_end(spared: Collection[int]) -> list[int]:
    # read anew on every round: processes go on starting others while they are ended
    kept = {pid for ancestor in spared for pid in (ancestor, *descendants(ancestor))}
    return [pid for pid in descendants(os.getpid()) if pid not in kept and not _is_arbiter(pid)]


def _bury(pid: int) -> None:
    """Collect one orphan: by its number, since other children are waited for by whoever started them."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # its own parent collects it
        return


def supervise(command: list[str], *, control: bool, parent_pid: int | None, grace_s: float = 0.0) -> int:
    """Run `command` until it ends or is to end; its exit code as a shell would give it."""
    adopt_orphans()
    wake_fd = wake_on(signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    parent_fd = None if parent_pid is None else _open_parent(parent_pid)
    try:
        child = _start(command, apart=control)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return NOT_FOUND
    watched = [wake_fd, *([0] if control else []), *([parent_fd] if parent_fd is not None else [])]
    code: int | None = None
    ask_at_s = kill_at_s = math.inf  # when every process below gets SIGTERM, and SIGKILL
    # nothing is polled: a child's end arrives as SIGCHLD on the wake-up descriptor
    while code is None:
        left_s = min(ask_at_s, kill_at_s) - time.monotonic()
        readable, _, _ = select.select(watched, [], [], None if left_s == math.inf else max(0.0, left_s))
        if parent_fd in readable or (control and 0 in readable and not _pass_on(child)):
            break
        numbers = os.read(wake_fd, 4096) if wake_fd in readable else b""
        now_s = time.monotonic()
        if signal.SIGTERM in numbers and not control:
            if not grace_s or kill_at_s < ask_at_s:
                break
            ask_at_s, kill_at_s = now_s, min(kill_at_s, now_s + grace_s)
        elif grace_s and kill_at_s == math.inf and {signal.SIGINT, signal.SIGHUP} & set(numbers):
            ask_at_s, kill_at_s = now_s + grace_s * 2 / 3, now_s + grace_s
        if now_s >= kill_at_s:
            break
        if now_s >= ask_at_s:
            ask_at_s = math.inf
            # not the command alone: unshare blocks SIGTERM, and a shell lets its own command run on
            for pid in descendants(os.getpid()):
                _send(pid, signal.SIGTERM)
        code = _reap(child)
    if code is None and control:  # all that can be found on a machine without /proc
        os.killpg(child, signal.SIGKILL)
    end_descendants(LAST_WORDS_S if code is not None else 0.0)
    return KILLED + signal.SIGKILL if code is None else code


def wake_on(*names: signal.Signals) -> int:
    """A descriptor on which the numbers of these signals arrive as bytes; they do nothing else any more.

    A handler that raises could come just after a child was collected, and its exit code would be lost. What was ignored
    before, as under nohup, stays so: a command inherits it.
    """
    wake_fd, signal_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(signal_fd, warn_on_full_buffer=False)
    for name in names:
        if name is signal.SIGCHLD or signal.getsignal(name) is not signal.SIG_IGN:
            signal.signal(name, lambda *_: None)
    return wake_fd


def _open_parent(pid: int) -> int:
    """A descriptor that becomes readable when the parent ends; where it has ended already, so does this process."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        sys.exit(KILLED + signal.SIGKILL)
    if os.getppid() != pid:  # the number may be another's by now
        sys.exit(KILLED + signal.SIGKILL)
    return fd


def _start(command: list[str], *, apart: bool) -> int:
    """Fork and become the command. `apart`: in a process group of its own, and with nothing to read.

    A group and not a session: a session's automatic scheduling group splits its weight over the cores by load, and a
    worker that communicates beside another job's computation would wait for the whole of it.
    """
    supervisor_pid = os.getpid()
    told, failed = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if not child:
        try:
            die_with_parent(supervisor_pid)
            if apart:
                os.setpgid(0, 0)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.execvp(command[0], command)
        except OSError as error:
            os.write(failed, str(error.errno).encode())
        finally:
            os._exit(NOT_FOUND)
    os.close(failed)
    with open(told, "rb") as stream:
        reason = stream.read()  # ends when the command has begun
    if reason:
        os.waitpid(child, 0)
        raise OSError(int(reason), os.strerror(int(reason)))
    return child


def _pass_on(child: int) -> bool:
    """Send on the signals that have come; False when the pipe has ended."""
    numbers = os.read(0, 64)
    for number in numbers:
        try:
            os.killpg(child, number)  # not reaped yet, so the number is still its own
        except ProcessLookupError:
            return True
    return bool(numbers)


def _reap(child: int) -> int | None:
    """Collect whoever has ended; the exit code once the command's own process is among them."""
    code = None
    for pid, status in _ended():
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
    return KILLED - code if code is not None and code < 0 else code


def _ended() -> list[tuple[int, int]]:
    ended: list[tuple[int, int]] = []
    while True:
        try:
            # orphans of the command are collected too, or they would stay as zombies
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended.append((pid, status))


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):  # gone, or another user's by its own will
        return


def _processes() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # a machine without it: no descendant can be found
        return []


def _parent(pid: int) -> int | None:
    """Its parent's number; None when it is gone."""
    fields = stat_fields(pid)
    if not fields:
        return None
    state, parent = fields[:2]
    return None if state in ("Z", "X") and int(parent) != os.getpid() else int(parent)


def _is_arbiter(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return ARBITER in file.read()
    except OSError:
        return False


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")


def main(words: list[str]) -> int:
    """The command line of the module's docstring."""
    cut = words.index("--")
    options, command = words[:cut], words[cut + 1 :]
    given = dict(option.split("=") for option in options if "=" in option)
    parent_pid = int(given["--parent"]) if "--parent" in given else None
    return supervise(
        command, control="--control" in options, parent_pid=parent_pid, grace_s=float(given.get("--grace", "0"))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
