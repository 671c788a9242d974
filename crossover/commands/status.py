"""One look at the arbiter of this host: who sits where, whose turn it is, and
what was used so far.

examples:
  crossover status                          the arbiters of this host
  crossover status --json --socket PATH     {"socket": …, "status": {…}}, one
                                            line a socket; null: nobody there
  crossover status > /dev/null && echo "this host is shared"

What a killed arbiter has left is removed.

exit codes: 0 served; 1 nobody serves it, or one of several; 2 wrong usage.
"""

import argparse
import json
import sys
from pathlib import Path

from crossover.commands.sockets import look_at
from crossover.commands.texts import aligned, clock, percent, seconds
from crossover.status import HostStatus, TokenStatus


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `crossover status`."""
    parser.add_argument("--socket", type=Path, action="append", metavar="PATH", help="an arbiter's socket (repeatable)")
    parser.add_argument("--json", action="store_true", help="one line of JSON a socket")


def run(arguments: argparse.Namespace) -> int:
    """Print every arbiter's status; 0 when all were there."""
    found = look_at(arguments.socket)
    for path, status in found:
        if arguments.json:
            value = None if status is None else json.loads(status.to_json())
            print(json.dumps({"socket": str(path), "status": value}))
        elif status is None:
            remedy = "start jobs with `crossover run`, or name its --socket"
            print(f"crossover: no arbiter serves {path}: {remedy}", file=sys.stderr)
        else:
            print("\n".join(described(path, status)))
    return 0 if all(status is not None for _, status in found) else 1


def described(path: Path, status: HostStatus) -> list[str]:
    """The status as lines of text."""
    head = f"{path}: arbiter {status.pid}, up {clock(status.uptime_s)}, {status.sharing} of {', '.join(status.jobs)}"
    return [head, *(line for token in status.tokens for line in ["", *_token_lines(token, status.uptime_s)])]


def _token_lines(token: TokenStatus, uptime_s: float) -> list[str]:
    state = "" if token.is_open else ", waiting for jobs to come"
    rows = [("job", "phase", "for", "turns", "held", "waited", "process")]
    for seat in token.seats:
        held, waited = (f"{seconds(time_s)} {percent(time_s / uptime_s):>5}" for time_s in (seat.held_s, seat.waited_s))
        since = seconds(seat.since_s)
        rows.append((seat.job, str(seat.phase), since, str(seat.num_turns), held, waited, str(seat.pid or "–")))
    return [f"{token.name}: lease {token.generation}{state}", *(f"  {line}" for line in aligned(rows, left=2))]
