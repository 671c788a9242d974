"""`crossover-bench pace`: an unmodified script as rank 0 among virtual peers, on a modelled link."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from crossover.supervisor import ending_with_me, granting, supervised
from fabric.cluster import FabricError
from harness.lab.scratch import Scratch
from harness.paced.settings import VARIABLE, parse_pace
from results.files import replacing
from suites.folders import named_path, prepare_file

AUTOLOAD = Path(__file__).resolve().parents[2] / "harness" / "paced" / "autoload"
GRACE_S = 2.0  # for the script to end after a SIGTERM
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
    if shutil.which(command[0]) is None:
        raise FabricError(f"cannot start {command[0]}; is it in PATH, and may it be executed?")
    settings = f"hosts={arguments.hosts},rate={arguments.rate},alpha={arguments.alpha}"
    parse_pace(settings)
    out = None if arguments.out is None else prepare_file(arguments.out)
    scratch = Scratch()
    try:
        report = scratch.path / "report.json"
        environment = paced_environment(f"{settings},report={report}", arguments.hosts)
        try:
            code = run_to_its_end(command, environment)
        finally:
            # A script that Ctrl-C has ended has reported too. The user's file is never the script's to write, so that
            # an earlier report stays until there is a new one, and its name may hold what ends a setting.
            if out is not None and report.exists():
                with replacing(out) as file:
                    file.write(report.read_bytes())
        if not report.exists():
            print(
                "crossover-bench pace: nothing was paced: no process of the command called "
                "torch.distributed.init_process_group and came to its end",
                file=sys.stderr,
            )
            return code or 1
    finally:
        scratch.remove()
    return code


def run_to_its_end(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the command; its exit code as a shell would give it. Nothing of it goes on after this, or after this
    process."""
    line = [*supervised(ending_with_me(), granting(GRACE_S)), *command]
    with subprocess.Popen(line, env=environment) as process:
        try:
            return process.wait()
        finally:
            process.terminate()
            process.wait()


def paced_environment(settings: str, num_ranks: int, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment in which a script is paced, and finds itself as rank 0."""
    path = os.pathsep.join(filter(None, [str(AUTOLOAD), base.get("PYTHONPATH", "")]))
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": "1"}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}  # read by scripts, used by nobody
    return {**base, VARIABLE: settings, "PYTHONPATH": path, **place, **meeting}
