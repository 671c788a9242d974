"""`python -m suites` and `crossover-bench`."""

from __future__ import annotations

import os
import sys
import tempfile


def main() -> int:
    """The command line; its imports take half a second, in which Ctrl-C ends it as quietly as later."""
    # As the Makefile. A user's command that is started from here keeps what its environment says.
    sys.dont_write_bytecode = False
    if missing := _missing():
        print(f"crossover-bench: {missing}", file=sys.stderr)
        return 2
    try:
        from suites import cli

        return cli.main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _missing() -> str:
    """What every command needs of the machine; torch and psutil would fail on it without naming it."""
    try:
        os.getcwd()
    except OSError:
        return "the working folder was deleted: change to another one"
    try:
        tempfile.gettempdir()
    except OSError as error:
        return f"{error.strerror}: free some of it, set TMPDIR, or raise `ulimit -f`"
    return "" if os.access("/proc/meminfo", os.R_OK) else "/proc cannot be read: mount it (mount -t proc proc /proc)"


if __name__ == "__main__":
    sys.exit(main())
