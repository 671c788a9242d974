"""`python -m suites` and `crossover-bench`."""

from __future__ import annotations

import sys


def main() -> int:
    """The command line; its imports take half a second, in which Ctrl-C ends it as quietly as later."""
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
