r"""Start jobs together, each with its own launcher, and let them take turns on
their devices.

Each job is NAME="COMMAND ARGS". The command is split into words as a shell
would split it, and no shell ever sees it. Its scripts find the job's name and
the settings in their environment when they call crossover.attach(model,
optimizer). The first worker on a host starts that host's arbiter. The order of
the jobs is the order of their turns.

examples:
  OMP_NUM_THREADS=1 crossover run \
                resnet="horovodrun -np 2 python resnet.py" \
                bert="horovodrun -np 2 python bert.py"
  crossover run a="torchrun --standalone --nproc-per-node 2 a.py" \
                b="torchrun --standalone --nproc-per-node 2 b.py"
  crossover run --sharing hold a="python a.py" b="python b.py"
                                     another policy, for comparison
  crossover run --profile profiles a="python a.py" b="python b.py"
                                     one after the other: what each costs alone
  crossover plan profiles/*.json --settings-out pair.json
  crossover run --settings pair.json a="python a.py" b="python b.py"

A job that fails or is killed does not end the others, unless --fail-fast is
given. Ctrl-C sends SIGINT to all jobs, SIGTERM after 5 s, SIGKILL after 10 s;
Ctrl-C again kills them at once. However `crossover run` ends, its jobs end
with it.

exit codes: 0 all jobs succeeded, else that of the job that failed first (128+n
for one that signal n ended); 2 wrong usage; 130 interrupted; 143 terminated.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from crossover.commands.job_group import JobEnd, JobGroup
from crossover.commands.launching import JobCommand, check_names, job_environment, parse_job, told_end
from crossover.commands.screen import Screen
from crossover.commands.sockets import settle_socket, sole_run, status_at
from crossover.commands.texts import aligned, clock, milliseconds, percent, seconds
from crossover.commands.usage import Ledger
from crossover.commands.waiting import stalls
from crossover.errors import ArbiterAbsent, ArbiterLost, CrossoverError, Refused
from crossover.policies import Sharing
from crossover.process import default_path, runtime_folder_remark
from crossover.settings import GATHER_LIMIT_S, IDLE_LIMIT_S, Settings
from crossover.status import HostStatus, excuse
from crossover.tokens import Phase

NEVER = "none"
_MAX_SETTINGS_CHARS = 1 << 20  # more is no settings file, but /dev/zero or the like
_GLANCE_S = 0.2  # an arbiter that is slower is looked at the next time
_TABLE = ("job", "end", "wall", "turns", "mean turn", "held", "waited")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `crossover run`."""
    parser.usage = '%(prog)s [OPTIONS] NAME="COMMAND ARGS" [NAME="COMMAND ARGS" …]'
    add = parser.add_argument
    add("jobs", nargs="+", metavar="NAME=COMMAND", help="a job's name and its command, in turn order")
    policies = ", ".join(sharing for sharing in Sharing if sharing is not Sharing.CROSSOVER)
    add("--sharing", choices=list(map(str, Sharing)), metavar="POLICY", help=f"default crossover; or {policies}")
    add("--settings", type=Path, metavar="FILE", help="JSON of settings, as `crossover plan --settings-out` writes it")
    add("--socket", type=Path, metavar="PATH", help="the arbiter's socket on every host (default: one a user and host)")
    add("--log-dir", type=Path, metavar="DIR", help="also write each job's whole output to DIR/NAME.log")
    add("--lease-limit", type=float, metavar="S", help="withdraw a turn that lasts longer (default: never)")
    add("--gather-limit", type=float, metavar="S", help=f"do not wait longer for a job to come ({GATHER_LIMIT_S:.0f})")
    add(
        "--idle-limit",
        type=_limit,
        metavar="S",
        help=f"pass over a job that lets its turn wait longer ({IDLE_LIMIT_S:.0f}; none)",
    )
    add(
        "--profile",
        type=Path,
        metavar="DIR",
        help="run the jobs alone, one by one, and write DIR/NAME.json of each (layers to DIR/layers)",
    )
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--keep-going", action="store_true", help="a failed job does not end the others (default)")
    ways.add_argument("--fail-fast", action="store_true", help="the first job that fails ends the others")


def run(arguments: argparse.Namespace) -> int:
    """Run the jobs; the exit code is theirs."""
    commands = [parse_job(text) for text in arguments.jobs]
    settings = settings_of(arguments, check_names(commands))
    socket_path = str(arguments.socket.absolute()) if arguments.socket else None
    screen = Screen(sys.stdout, settings.jobs)
    if (remark := runtime_folder_remark()) and socket_path is None:
        screen.say(f"crossover: {remark}")
    # taken before anything starts, and held until the last job has ended
    with sole_run(Path(socket_path) if socket_path else default_path()):
        if arguments.profile is not None:
            from crossover.commands.profiling import profile_jobs

            return profile_jobs(arguments, commands, settings, screen)
        return _run_together(arguments, commands, settings, screen)


def _run_together(
    arguments: argparse.Namespace, commands: Sequence[JobCommand], settings: Settings, screen: Screen
) -> int:
    socket_path = str(arguments.socket.absolute()) if arguments.socket else None
    if len(commands) == 1:
        screen.say("crossover: one job alone takes turns with nobody: name another, or use --profile")
    monitor = RunMonitor(settings, socket_path, screen, Ledger(settle_socket(socket_path, settings, screen.say)))
    group = JobGroup(screen, arguments.log_dir, monitor.tick, fail_fast=arguments.fail_fast, on_end=monitor.note_end)
    try:
        ends = group.run(commands, {c.name: job_environment(c.name, settings, socket_path) for c in commands})
    finally:
        screen.end_progress()
    # the last turns were taken since the last tick
    monitor.look()
    screen.say("\n".join(["", *summary(ends, monitor.ledger), *_notes(monitor, arguments.log_dir)]))
    return exit_code(group.code, ends)


def settings_of(arguments: argparse.Namespace, names: tuple[str, ...]) -> Settings:
    """The settings file's, with what the command line says on top; jobs in the file's order if it has one."""
    given = {} if arguments.settings is None else _read_settings(arguments.settings)
    # the file's order counts: it was planned in it
    jobs = given.setdefault("jobs", list(names))
    if not isinstance(jobs, list) or set(map(str, jobs)) != set(names):
        raise Refused(f"{arguments.settings} is for jobs {jobs}, not {list(names)}: use the same names in both")
    options = {
        "sharing": arguments.sharing,
        "lease_limit_s": arguments.lease_limit,
        "gather_limit_s": arguments.gather_limit,
    }
    given.update({name: value for name, value in options.items() if value is not None})
    if arguments.idle_limit is not None:
        given["idle_limit_s"] = None if arguments.idle_limit == NEVER else arguments.idle_limit
    return Settings.from_json(json.dumps(given))


def _limit(text: str) -> float | str:
    """Seconds, or `none` for no limit (what NCCL needs)."""
    if text == NEVER:
        return NEVER
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds: write 10, or {NEVER}") from error


def _read_settings(path: Path) -> dict[str, object]:
    try:
        with open(path, encoding="utf-8", opener=_open_at_once) as file:
            given = json.loads(file.read(_MAX_SETTINGS_CHARS))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"settings file {path} cannot be read ({error}): `crossover plan` writes one") from error
    if not isinstance(given, dict):
        raise Refused(f"settings file {path} is no JSON object: `crossover plan --settings-out` writes one")
    return given


def _open_at_once(path: str, flags: int) -> int:
    """Without waiting for somebody to write to what may be a named pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


@dataclass(slots=True)
class RunMonitor:
    """What `crossover run` sees of this host's arbiter while its jobs run."""

    settings: Settings
    socket_path: str | None
    screen: Screen
    ledger: Ledger
    began_s: float = field(default_factory=time.monotonic)
    has_complained: bool = False
    ended: set[str] = field(default_factory=set)
    told: set[tuple[str, tuple[str, ...]]] = field(default_factory=set)  # stalls that stand on the screen

    @property
    def path(self) -> Path:
        """This host's socket."""
        return Path(self.socket_path) if self.socket_path else default_path()

    def tick(self, now_s: float) -> None:
        """Look at the arbiter, and draw the progress line."""
        self.look()
        self.screen.show_progress(self._progress(now_s))

    def note_end(self, end: JobEnd) -> None:
        """A job has ended: the others must not wait for it at a token to which it never came, or whose arbiter began
        after its end."""
        self.ended.add(end.name)

    def look(self) -> None:
        """Take in the arbiter's status, if there is one on this host. The first failure is reported. The jobs go on,
        and so do the looks, since a job that has ended must be excused."""
        try:
            status = status_at(self.path, limit_s=_GLANCE_S)
            if status is None:
                return
            self.ledger.observe(status)
            self._excuse_the_dead(status)
            self._tell_stalls(status)
        except (CrossoverError, OSError) as error:
            # once: a failed look per tick would fill the screen
            if not self.has_complained:
                self.screen.say(f"crossover: not all turns are counted: {error}")
            self.has_complained = True

    def _excuse_the_dead(self, status: HostStatus) -> None:
        absent = {seat.job for token in status.tokens for seat in token.seats if seat.phase is Phase.ABSENT}
        for job in sorted(absent & self.ended):
            with suppress(ArbiterAbsent, ArbiterLost):  # the next look asks again
                if not excuse(self.path, job, limit_s=_GLANCE_S):
                    continue
                self.screen.say(f"crossover: {job} has ended: the others go on without it")

    def _tell_stalls(self, status: HostStatus) -> None:
        """Each stall once, and again if it comes back."""
        found = {(stall.token, stall.culprits): stall for stall in stalls(status)}
        for key, stall in found.items():
            if key not in self.told:
                self.screen.say(f"crossover: {stall.told}")
        self.told = set(found)

    def _progress(self, now_s: float) -> str:
        jobs = "".join(f" · {job} {self.ledger.of_job(job).num_turns} turns" for job in self.settings.jobs)
        busy = "".join(f" · {name} busy {percent(part)}" for name, part in self.ledger.busy().items())
        return f"{clock(now_s - self.began_s)} · {self.settings.sharing}{jobs}{busy}"


def summary(ends: Sequence[JobEnd], ledger: Ledger) -> list[str]:
    """A table of the jobs in the order of their ends; fractions are of the time in which any job took turns."""
    elapsed_s = ledger.elapsed_s()
    rows: list[tuple[str, ...]] = [_TABLE]
    for end in ends:
        use = ledger.of_job(end.name)
        turn = milliseconds(use.held_s / use.num_turns if use.num_turns else None)
        held, waited = (
            f"{seconds(part_s)} {percent(part_s / elapsed_s) if elapsed_s else '–':>5}"
            for part_s in (use.held_s, use.waited_s)
        )
        rows.append((end.name, told_end(end.code), seconds(end.wall_s), str(use.num_turns), turn, held, waited))
    return aligned(rows, left=2)


def _notes(monitor: RunMonitor, log_folder: Path | None) -> list[str]:
    busy = [f"{name} was busy {percent(part)} of the time with turns" for name, part in monitor.ledger.busy().items()]
    silent = [job for job in monitor.settings.jobs if not monitor.ledger.of_job(job).num_turns]
    missing = f"no turns of {', '.join(silent)} on this host: does the script call crossover.attach(model, optimizer)?"
    return [*busy, *([missing] if silent else []), *([f"logs are in {log_folder}"] if log_folder else [])]


def exit_code(signalled: int | None, ends: Sequence[JobEnd]) -> int:
    """That of the signal, else of the first job that failed."""
    return signalled or next((end.code for end in ends if end.code), 0)
