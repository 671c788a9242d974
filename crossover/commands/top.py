"""Watch turns live: who has the device, what each job waits for, how busy the
device is, and what sharing gains.

examples:
  crossover top                         the arbiters of this host, every second
  crossover top --socket A --socket B   two of them, side by side
  crossover top --profiles profiles     with the gain over the jobs' own solo
                                        steps, from `crossover run --profile`
  crossover top --once                  one table, for a script or a log

`turns/s`, `turn` (its mean length), `held` and `waited` are of the last five
seconds (--once: of the interval). `busy` is the part of them in which the
device was held: one job's computation beside the others' communication. `gain`
is turns/s times solo step time, summed over the jobs; 1.00 is one job after
the other.

`q` or Ctrl-C ends it. It goes on through the end and return of an arbiter.
exit codes: 0 ended by you; 1 nobody there (--once); 2 wrong usage.
"""

import argparse
import select
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from crossover.commands.sockets import look_at
from crossover.commands.texts import clock, milliseconds, percent, seconds
from crossover.commands.usage import JobRate, TokenRate, rates
from crossover.errors import Refused
from crossover.status import HostStatus

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.table import Table

WINDOW_S = 5.0  # slow steps would make the rates of one second jump
_BAR_WIDTH = 10
_WIDE_COLUMNS = 74  # of a panel with bars
_PHASE_STYLES = {"holding": "bold green", "waiting": "yellow", "idle": "cyan", "absent": "dim", "left": "dim"}


@dataclass(frozen=True, slots=True)
class Sight:
    """One socket at a moment; `status` is None where nobody serves it."""

    path: Path
    status: HostStatus | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `crossover top`."""
    add = parser.add_argument
    add("--socket", type=Path, action="append", metavar="PATH", help="an arbiter's socket (repeatable; else all here)")
    add("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default 1)")
    add("--profiles", type=Path, metavar="DIR", help="profiles of the jobs alone, to show the gain")
    add("--once", action="store_true", help="print one table, over one interval, and end")


def run(arguments: argparse.Namespace) -> int:
    """Watch until the user has enough."""
    from rich.console import Console

    if not (isfinite(arguments.interval) and arguments.interval > 0):
        raise Refused(f"--interval must be a positive number of seconds, not {arguments.interval}")
    solo_s = {} if arguments.profiles is None else _solo_times(arguments.profiles)
    console = Console()
    before = _look(arguments.socket)
    if arguments.once or not console.is_terminal:
        time.sleep(arguments.interval)
        sights = _look(arguments.socket)
        console.print(view(before, sights, solo_s, console.width))
        return 0 if any(sight.status is not None for sight in sights) else 1
    with suppress(KeyboardInterrupt):
        _watch(console, arguments, solo_s, before)
    return 0


def _look(given: Sequence[Path] | None) -> list[Sight]:
    return [Sight(path, status) for path, status in look_at(given)]


def _watch(console: "Console", arguments: argparse.Namespace, solo_s: Mapping[str, float], first: list[Sight]) -> None:
    from rich.live import Live

    # the oldest look within the window is the one that rates are counted from
    looks = deque([first], maxlen=1 + ceil(WINDOW_S / arguments.interval))
    with _single_keys() as keys_fd, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(looks[0], looks[-1], solo_s, console.width), refresh=True)
            if _pressed_q(keys_fd, arguments.interval):
                return
            looks.append(_look(arguments.socket))


@contextmanager
def _single_keys() -> Iterator[int | None]:
    """Keys as they are pressed, from a terminal's standard input; None where it is another thing."""
    # in a pipe, where there are no keys to read, Ctrl-C ends it
    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _pressed_q(keys_fd: int | None, patience_s: float) -> bool:
    """Wait for `q` that long."""
    until_s = time.monotonic() + patience_s
    while (left_s := until_s - time.monotonic()) > 0:
        if keys_fd is None:
            time.sleep(left_s)
        elif select.select([keys_fd], [], [], left_s)[0] and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


def view(before: Sequence[Sight], after: Sequence[Sight], solo_s: Mapping[str, float], width: int) -> "Group":
    """All sockets at the later moment, side by side where the width allows."""
    from rich.columns import Columns
    from rich.console import Group

    earlier = {sight.path: sight for sight in before}
    is_narrow = width < _WIDE_COLUMNS * len(after)
    panels = [_panel(earlier.get(sight.path), sight, solo_s, is_narrow=is_narrow) for sight in after]
    return Group(Columns(panels, padding=(0, 1)))


def _panel(before: Sight | None, after: Sight, solo_s: Mapping[str, float], *, is_narrow: bool) -> "RenderableType":
    from rich.console import Group
    from rich.panel import Panel

    if after.status is None:
        return Panel("nobody serves it now", title=str(after.path), border_style="red", title_align="left")
    status = after.status
    earlier = before.status if before is not None else None
    tokens = [_token(token, solo_s, is_narrow=is_narrow) for token in rates(earlier, status)]
    head = f"{status.sharing} · up {clock(status.uptime_s)} · pid {status.pid}"
    body = Group(*tokens) if tokens else "no job has come yet"
    return Panel(body, title=after.path.name, subtitle=head, title_align="left", subtitle_align="left", expand=False)


def _token(token: TokenRate, solo_s: Mapping[str, float], *, is_narrow: bool) -> "Table":
    from rich.table import Table

    state = "" if token.is_open else " · waiting for jobs to come"
    table = Table(title=f"{token.name}{state}", caption=_caption(token, solo_s), box=None, padding=(0, 1, 0, 0))
    table.title_style, table.caption_style = "bold", ""
    table.title_justify = table.caption_justify = "left"
    for name, justify in (("job", "left"), ("phase", "left"), ("turns", "right"), ("turns/s", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for name in ("turn", "held", "waited"):
        table.add_column(name, justify="right", no_wrap=True)
    for job in token.jobs:
        table.add_row(*_cells(job, is_narrow=is_narrow))
    return table


def _cells(job: JobRate, *, is_narrow: bool) -> list[str]:
    style = _PHASE_STYLES.get(job.phase, "")
    is_stuck = job.phase in ("holding", "waiting", "idle") and job.since_s >= 1
    phase = f"[{style}]{job.phase}[/]" + (f" {seconds(job.since_s)}" if is_stuck else "")
    held = percent(job.held) if is_narrow else f"{bar(job.held)} {percent(job.held):>5}"
    turns = [str(job.num_turns), f"{job.turns_per_s:.1f}", milliseconds(job.turn_s)]
    return [job.job, phase, *turns, held, percent(job.waited)]


def _caption(token: TokenRate, solo_s: Mapping[str, float]) -> str:
    gain = token.gain(solo_s)
    told = "" if gain is None else f" · gain {gain:.2f}"
    return f"busy {bar(token.busy)} {percent(token.busy)}{told}"


def bar(part: float) -> str:
    """A fraction as a bar, full from 1 on."""
    full = round(min(1.0, max(0.0, part)) * _BAR_WIDTH)
    return "█" * full + "░" * (_BAR_WIDTH - full)


def _solo_times(folder: Path) -> dict[str, float]:
    """Each job's solo step time in seconds, from the profiles in a folder."""
    from crossover.planning import read_profile

    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise Refused(f"no profiles in {folder}: `crossover run --profile {folder} …` writes them")
    return {profile.name: profile.solo_s for profile in map(read_profile, paths)}
