"""`python -m suites` and `crossover-bench`."""

from __future__ import annotations

import os
import resource
import sys
import tempfile

LEAST_FILE_BYTES = 1 << 20


def why_nothing_runs() -> str | None:
    """What libraries answer with an abort, or with broken files of bytecode; None where all is well."""
    try:
        os.getcwd()
    except OSError:
        return "the working folder was deleted: change to another one"
    most_bytes = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if most_bytes != resource.RLIM_INFINITY and most_bytes < LEAST_FILE_BYTES:
        return f"a file may have {most_bytes} bytes, too few for records; raise the limit with `ulimit -f unlimited`"
    try:
        tempfile.gettempdir()
    except OSError as error:
        return f"{error.strerror}: free some of it, set TMPDIR, or raise `ulimit -f`"
    if not os.access("/proc/meminfo", os.R_OK):
        return "/proc cannot be read: mount it (mount -t proc proc /proc)"
    return None


def main() -> int:
    """The command line; its imports take half a second, in which Ctrl-C ends it as quietly as later."""
    if (reason := why_nothing_runs()) is not None:
        print(f"crossover-bench: {reason}", file=sys.stderr)
        return 2
    # As the Makefile. A user's command that is started from here keeps what its environment says.
    sys.dont_write_bytecode = False
    try:
        from suites import cli

        return cli.main()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
