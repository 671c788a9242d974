"""`crossover` and `python -m crossover`.

Exit codes: 0 done; 1 the machine has no room or descriptor for it; 2 the request was wrong, with the value and the
remedy in one line; 130 interrupted. Each command's help names its own.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from crossover.commands import plan, run, status, top, verify
from crossover.commands.screen import open_standard_streams
from crossover.errors import CrossoverError

_DESCRIPTION = """\
Let distributed training jobs share their devices in turns: while one computes,
another communicates.
"""
_EPILOG = """\
examples:
  crossover run --profile profiles a="python a.py"  what a job costs alone
  crossover plan profiles/a.json profiles/b.json    what sharing would gain
  crossover run a="python a.py" b="python b.py"     two jobs in turns
  crossover verify "python a.py"                    the same weights in turns as without?
  crossover top                                     watch them
  crossover status --json                           the same for scripts

A script takes part by one line, crossover.attach(model, optimizer).
`crossover COMMAND --help` says more.
"""
_COMMANDS: tuple[tuple[str, ModuleType, str], ...] = (
    ("run", run, "start jobs together, in turns"),
    ("verify", verify, "check that a script trains the same weights in turns"),
    ("plan", plan, "predict what jobs gain together, and whether they fit"),
    ("top", top, "watch turns live"),
    ("status", status, "one look at an arbiter, for scripts"),
)

_EXTRAS = {"plan": ("rich", "numpy", "scipy", "networkx"), "top": ("rich",)}  # what pyproject.toml lists for each


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run one command; returns the exit code."""
    open_standard_streams()
    parser = _parser()
    arguments = parser.parse_args(argv)
    # argparse would call a missing command an error without help
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        return int(arguments.command(arguments))
    except CrossoverError as error:
        print(f"crossover: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if arguments.name not in _EXTRAS or str(error.name).partition(".")[0] not in _EXTRAS[arguments.name]:
            raise
        extra = f"pip install 'crossover-bench[{arguments.name}]'"
        print(
            f"crossover: `crossover {arguments.name}` needs {error.name}, which is not installed: {extra}",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read the output has enough, as in `crossover run … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # no descriptors, no room: the machine's fault, and no reason for a traceback
        print(f"crossover: {error}{_hint()}", file=sys.stderr)
        return 1


def _hint() -> str:
    """Why a relative path cannot be found, where the reason is the working folder."""
    try:
        os.getcwd()
    except OSError:
        return ": the working folder was deleted: change to another one, or give absolute paths"
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="crossover", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, module, text in _COMMANDS:
        command = commands.add_parser(
            name, help=text, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(command)
        command.set_defaults(command=module.run, name=name)
    return parser


if __name__ == "__main__":
    sys.exit(main())
