"""Tie a process to its parent; as a script, `leash.py PARENT_PID COMMAND…`, tie a command to who starts it.

The launcher starts the lab through this, so that a launcher killed outright takes the lab along. It
imports the standard library only, since it is run by its path, wherever the caller stands.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill the calling process when the thread that started it ends.

    The setting survives exec, not fork. `parent_pid` tells a parent that had died before the call.
    Raises OSError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl: {os.strerror(number)}")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Tie this process to its parent and become the command."""
    parent_pid, *command = sys.argv[1:]
    die_with_parent(int(parent_pid))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
