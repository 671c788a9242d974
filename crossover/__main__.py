"""`crossover` and `python -m crossover`."""

import sys


def main() -> int:
    """The command line; Ctrl-C ends it during its imports as quietly as later."""
    try:
        from crossover.commands.main import main as run_command

        return run_command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
