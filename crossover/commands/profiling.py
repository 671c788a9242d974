"""What each job costs alone: it runs by itself, and its arbiter's clock says how long turns and steps are.

Each look at the arbiter gives a mark: the job had ended n turns and held h seconds when its phase began. Between two
marks of one kind lie whole steps, so (h' − h)/(n' − n) is the device time c, and the time between over n' − n the step
time t, each a mean over the few steps between two looks; the profile has the medians of these. Communication is known
by what it adds to a step, m = t − c: a lower bound where the job hides a part of it behind its own computation.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from crossover.commands.job_group import Crew
from crossover.commands.launching import JobCommand, job_environment
from crossover.commands.screen import Screen
from crossover.commands.sockets import settle_socket, status_at
from crossover.commands.texts import milliseconds
from crossover.commands.usage import devices
from crossover.errors import Refused
from crossover.planning import JobProfile, profile_of, write_profile
from crossover.policies import Sharing
from crossover.process import default_path
from crossover.settings import Settings
from crossover.status import HostStatus, SeatStatus
from crossover.tokens import Phase

WARM_UP = 0.2  # the part of the turns that is not counted
_SOURCE = "`crossover run --profile` on one host, from its arbiter's clock"


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment between two phases of a job at a token: turns ended and seconds held until then, all by the arbiter's
    clock."""

    token: str
    phase: Phase
    at_s: float
    num_turns: int
    held_s: float


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole steps between two marks: how many, and the means of turn and step."""

    token: str
    num_steps: int
    turn_s: float
    step_s: float


@dataclass(slots=True)
class Observer:
    """Looks at one job that runs alone, and keeps its marks."""

    job: str
    path: Path
    screen: Screen
    marks: list[Mark] = field(default_factory=list)

    def tick(self, now_s: float) -> None:
        """Look once, and draw the progress line."""
        self.look()
        turns = self.marks[-1].num_turns if self.marks else 0
        self.screen.show_progress(f"{self.job} alone · {turns} turns")

    def look(self) -> None:
        """Keep what the arbiter says of the job now."""
        status = status_at(self.path, limit_s=0.2)
        if status is not None:
            self.marks += marks_of(status, self.job)


def marks_of(status: HostStatus, job: str) -> list[Mark]:
    """One mark a device that the job computes on."""
    return [
        _mark(token.name, status.uptime_s, seat)
        for token in devices(status)
        for seat in token.seats
        if seat.job == job and seat.num_turns and seat.phase in (Phase.HOLDING, Phase.IDLE)
    ]


def _mark(token: str, uptime_s: float, seat: SeatStatus) -> Mark:
    present_s = seat.since_s if seat.phase is Phase.HOLDING else 0.0
    return Mark(token, seat.phase, uptime_s - seat.since_s, seat.num_turns, seat.held_s - present_s)


def intervals(marks: Sequence[Mark]) -> list[Interval]:
    """The steps between neighbouring marks of one device and phase, without the warm-up."""
    last = max((mark.num_turns for mark in marks), default=0)
    kept = [mark for mark in marks if mark.num_turns >= WARM_UP * last]
    found: list[Interval] = []
    for token in sorted({mark.token for mark in kept}):
        holding, idle = (
            [mark for mark in kept if mark.token == token and mark.phase is phase]
            for phase in (Phase.HOLDING, Phase.IDLE)
        )
        series = max(holding, idle, key=len)
        found += [_interval(*pair) for pair in pairwise(series) if pair[1].num_turns > pair[0].num_turns]
    return found


def _interval(before: Mark, after: Mark) -> Interval:
    num_steps = after.num_turns - before.num_turns
    turn_s, step_s = (after.held_s - before.held_s) / num_steps, (after.at_s - before.at_s) / num_steps
    return Interval(after.token, num_steps, turn_s, step_s)


def profile_from(job: str, marks: Sequence[Mark]) -> JobProfile:
    """The profile of a job that ran alone; `Refused` where too few of its steps were seen."""
    found = intervals(marks)
    if not found:
        raise Refused(
            f"job {job!r} took too few turns on this host to be profiled ({len(marks)} looks saw one): it must call "
            "crossover.attach(model, optimizer), and run for some seconds"
        )
    steps = [interval for interval in found for _ in range(interval.num_steps)]
    return profile_of(
        job,
        turns_s=[step.turn_s for step in steps],
        steps_s=[step.step_s for step in steps],
        world=len({interval.token for interval in found}),
        source=_SOURCE,
    )


def profile_jobs(
    arguments: argparse.Namespace, commands: Sequence[JobCommand], settings: Settings, screen: Screen
) -> int:
    """Run each job by itself and write its profile; the exit code of the first that failed, 1 where only the profile
    could not be taken."""
    alone = replace(settings, sharing=Sharing.NAIVE, lead_rounds=0, shares=(), groups=(), beats=())
    socket_path = str(arguments.socket.absolute()) if arguments.socket else None
    path = Path(socket_path) if socket_path else default_path()
    settle_socket(socket_path, alone, screen.say)
    worst = 0
    for command in commands:
        observer = Observer(command.name, path, screen)
        crew = Crew(screen, arguments.log_dir, observer.tick)
        try:
            (end,) = crew.run([command], {command.name: job_environment(command.name, alone, socket_path)})
        finally:
            screen.end_progress()
        observer.look()
        if crew.code is not None:
            return crew.code
        worst = worst or end.code or _write(observer, arguments.profile)
        if end.code and arguments.fail_fast:
            break
    return worst


def _write(observer: Observer, folder: Path) -> int:
    try:
        profile = profile_from(observer.job, observer.marks)
    except Refused as error:
        observer.screen.say(f"crossover: {error}")
        return 1
    path = folder / f"{profile.name}.json"
    write_profile(profile, path)
    step, turn, rest = map(milliseconds, (profile.solo_s, profile.compute_s, profile.exposed_s))
    observer.screen.say(f"crossover: {path}: a step takes {step} alone, {turn} on the device, {rest} off it")
    return 0
