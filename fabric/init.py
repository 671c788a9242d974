"""First process of a lab's process namespace, as a script: `init.py COMMAND…`.

It starts the command, collects every orphan, passes SIGTERM on, and ends with the command's exit
status (128 + the signal if one killed it). With it the kernel kills whatever is left of the lab.
Like the leash it is run by its path.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> None:
    """Run the command and collect processes until it ends."""
    command = sys.argv[1:]
    child = os.fork()
    if child == 0:
        os.execvp(command[0], command)
    # a terminal sends SIGINT to the command as well; init must outlive its clean-up
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: os.kill(child, number))
    sys.exit(_collect_until(child))


def _collect_until(child: int) -> int:
    """Reap processes until `child` ends; return its exit status as a shell would."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


if __name__ == "__main__":
    main()
