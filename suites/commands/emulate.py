"""`crossover-bench emulate`: a command on every host of an emulated cluster, as a launcher would start it."""

from __future__ import annotations

import argparse

TEXT = (
    "Run a command on every host of an emulated cluster, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set as "
    "torchrun sets them. The exit code is the first one that is not 0; when one ends badly the others are ended."
)


def add_emulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    emulate = commands.add_parser("emulate", help="run a command on emulated hosts", description=TEXT)
    emulate.add_argument("--hosts", type=int, default=2, metavar="N", help="number of hosts (default 2)")
    emulate.add_argument("--rate", default="200mbit", metavar="RATE", help="of every host's link (default 200mbit)")
    emulate.add_argument("--once", action="store_true", help="the command once, beside the hosts")
    emulate.add_argument("line", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    emulate.set_defaults(command=run_emulated)


def run_emulated(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code."""
    from harness import hosted

    where = [] if arguments.once else ["--everywhere"]
    options = ["--hosts", str(arguments.hosts), "--rate", arguments.rate]
    return hosted.main([*options, *where, *arguments.line])
