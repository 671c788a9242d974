"""`crossover-bench pace`: an unmodified script as rank 0 among virtual peers, on a modelled link."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fabric.cluster import FabricError
from harness.paced.settings import VARIABLE, parse_pace
from suites.folders import named_path

AUTOLOAD = Path(__file__).resolve().parents[2] / "harness" / "paced" / "autoload"
TEXT = (
    "Run a script, unmodified, as rank 0 of N ranks of which the others are virtual: its collectives take the time of "
    "a link with the rate and the α given, and have the answers that equal peers would give. Prints step time, exposed "
    "time, bytes and messages."
)


def add_pace(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The command's options."""
    pace = commands.add_parser("pace", help="run a script among virtual peers on a modelled link", description=TEXT)
    pace.add_argument("--hosts", type=int, default=8, metavar="N", help="ranks, this one and virtual ones (default 8)")
    pace.add_argument("--rate", default="10gbit", metavar="RATE", help="of a host's link, e.g. 25gbit; none: no limit")
    pace.add_argument("--alpha", default="20us", metavar="TIME", help="of a round beside its bytes (default 20us)")
    pace.add_argument("--out", type=named_path, metavar="FILE", help="also write what was measured as JSON")
    pace.add_argument("script", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    pace.set_defaults(command=pace_script)


def pace_script(arguments: argparse.Namespace) -> int:
    """Run the command; returns its exit code. Raises: FabricError for a wrong request."""
    command = arguments.script[1:] if arguments.script[:1] == ["--"] else arguments.script
    if not command:
        raise FabricError("nothing to pace; name a command after --, e.g. -- python train.py")
    with tempfile.TemporaryDirectory(prefix="crossover-bench-") as folder:
        report = (arguments.out or Path(folder) / "report.json").absolute()
        report.unlink(missing_ok=True)
        settings = f"hosts={arguments.hosts},rate={arguments.rate},alpha={arguments.alpha},report={report}"
        parse_pace(settings)
        try:
            code = subprocess.run(command, env=paced_environment(settings, arguments.hosts), check=False).returncode
        except OSError as error:
            raise FabricError(f"cannot start {command[0]} ({error.strerror}); is it in PATH?") from error
        if not report.exists():
            print(
                "crossover-bench pace: nothing was paced: no process of the command called "
                "torch.distributed.init_process_group and came to its end",
                file=sys.stderr,
            )
            return code or 1
    return code


def paced_environment(settings: str, num_ranks: int, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which a script is paced, and finds itself as rank 0."""
    path = os.pathsep.join(filter(None, [str(AUTOLOAD), base.get("PYTHONPATH", "")]))
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # read by scripts, used by nobody
    return {**base, VARIABLE: settings, "PYTHONPATH": path, **place, **meeting}
