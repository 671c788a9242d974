"""Predict what jobs gain when they share devices, what each of them pays, and whether they fit, before anything runs.

Each PROFILE is a file that `crossover run --profile DIR` wrote: what one job costs alone. A file that is named twice
stands for two such jobs.

examples:
  crossover plan resnet50.json vgg16.json
  crossover plan resnet50.json bert.json --memory 16GiB --sharing weighted --settings-out shared.json
  crossover plan *.json --devices 3
  crossover run --settings shared.json resnet50="torchrun a.py" bert="torchrun b.py"

exit codes: 0 admitted (or warned about), 3 refused, 2 wrong usage or a profile that cannot be read.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import Any

from crossover.commands.plan_tables import print_pairing, print_plan
from crossover.errors import Refused
from crossover.planning import JobProfile, Pairing, Plan, Terms, Verdict, pair, plan, read_profile
from crossover.policies import Sharing
from crossover.simulator import LinkSharing

REFUSED = 3
_UNITS = {unit: 1000**power for power, unit in enumerate(("", "k", "m", "g", "t"))} | {
    f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)
}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `crossover plan`."""
    parser.add_argument("profiles", nargs="+", type=Path, metavar="PROFILE", help="a job's profile (JSON)")
    parser.add_argument("--devices", type=int, metavar="N", help="place the jobs on N devices, at most two on each")
    parser.add_argument("--memory", type=size_bytes, metavar="SIZE", help="of one device, for example 16GiB")
    parser.add_argument(
        "--sharing",
        choices=[*map(str, Sharing)],
        default="crossover",
        metavar="RULE",
        help=f"{', '.join(Sharing)} (default: crossover)",
    )
    parser.add_argument(
        "--weights", type=_weights, default=(), metavar="W,W,…", help="importance of each job, for --sharing weighted"
    )
    parser.add_argument(
        "--link",
        choices=["fair", "fifo"],
        default="fair",
        help="flows that share the link (default), or link turns, which the jobs themselves must take",
    )
    parser.add_argument("--handover-us", type=float, default=100.0, metavar="US", help="cost of a turn (default 100)")
    parser.add_argument(
        "--interference",
        type=float,
        default=0.0,
        metavar="S",
        help="how much longer computation takes while messages travel: 0.1 is 10 %% (default 0)",
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")
    parser.add_argument(
        "--settings-out", type=Path, metavar="FILE", help="write what `crossover run --settings` takes, unless refused"
    )


def run(arguments: argparse.Namespace) -> int:
    """Plan, print, and say by the exit code whether to go on."""
    profiles = _told_apart([read_profile(path) for path in arguments.profiles])
    terms = Terms(
        Sharing(arguments.sharing), LinkSharing(arguments.link), arguments.handover_us / 1e6, arguments.interference
    )
    if arguments.devices is not None:
        if arguments.weights:
            raise Refused("weights belong to one set of jobs: leave out --devices, or --weights")
        return _run_pairing(pair(profiles, arguments.devices, terms, device_memory_bytes=arguments.memory), arguments)
    found = plan(profiles, terms, device_memory_bytes=arguments.memory, weights=arguments.weights)
    if arguments.json:
        print(json.dumps(plan_values(found)))
    else:
        print_plan(found)
    if arguments.settings_out and found.verdict is not Verdict.REFUSE:
        _write_settings(found, arguments.settings_out)
    # A code of its own, so that a script can tell a plan that is refused from one that could not be made.
    return REFUSED if found.verdict is Verdict.REFUSE else 0


def size_bytes(text: str) -> int:
    """`16GiB`, `16G` (decimal) or plain bytes."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or found[2].lower() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write 16GiB, 16GB or a number of bytes")
    size = float(found[1]) * _UNITS[found[2].lower()]
    if not isfinite(size):
        raise argparse.ArgumentTypeError(
            f"{text:.20}… is more than any device has: write 16GiB, 16GB or a number of bytes"
        )
    return int(size)


def plan_values(found: Plan) -> dict[str, Any]:
    """A plan as plain values; times in seconds."""
    return {
        "verdict": found.verdict,
        "reasons": [asdict(reason) for reason in found.reasons],
        "notes": found.notes,
        "terms": asdict(found.terms),
        "bound": asdict(found.bound),
        "period_s": found.period_s,
        "gain": found.gain,
        "device_busy": found.device_busy,
        "link_busy": found.link_busy,
        "jobs": [asdict(job) for job in found.jobs],
        "memory": asdict(found.memory),
        "settings": json.loads(found.settings.to_json()),
    }


def _run_pairing(found: Pairing, arguments: argparse.Namespace) -> int:
    if arguments.json:
        print(json.dumps(_pairing_values(found)))
    else:
        print_pairing(found)
    if arguments.settings_out:
        path = arguments.settings_out
        if not path.name:
            raise Refused(f"cannot write {path}: give the name of a file")
        for number, shared in enumerate(found.plans, start=1):
            if shared is not None:
                _write_settings(shared, path.with_name(f"{path.stem}-{number}{path.suffix}"))
    return 0


def _pairing_values(found: Pairing) -> dict[str, Any]:
    return {
        "throughput": found.throughput,
        "devices": [
            {"jobs": jobs, "plan": None if shared is None else plan_values(shared)}
            for jobs, shared in zip(found.devices, found.plans, strict=True)
        ],
        "waiting": found.waiting,
    }


def _told_apart(profiles: Sequence[JobProfile]) -> list[JobProfile]:
    """The second job of a name becomes `name-2`, and so on."""
    names: list[str] = []
    for profile in profiles:
        count = 1
        name = profile.name
        while name in names:
            count += 1
            name = f"{profile.name}-{count}"
        names.append(name)
    return [replace(profile, name=name) for profile, name in zip(profiles, names, strict=True)]


def _weights(text: str) -> tuple[float, ...]:
    try:
        weights = tuple(map(float, text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} are not weights: write 2,1") from error
    if not all(isfinite(weight) and weight > 0 for weight in weights):
        raise argparse.ArgumentTypeError(f"{text!r}: weights are above 0")
    return weights


def _write_settings(found: Plan, path: Path) -> None:
    try:
        path.write_text(found.settings.to_json() + "\n", encoding="utf-8")
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error
    print(f"settings: {path}", file=sys.stderr)
