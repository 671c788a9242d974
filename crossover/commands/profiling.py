"""What each job costs alone: it runs by itself, and its arbiter's clock says how long turns and steps are.

Each look at the arbiter gives the start of a phase: the job had ended n turns and held h seconds by then. Between two
starts of one kind of phase lie whole steps, so (h' − h)/(n' − n) is the device time c, and the time between over n' − n
the step time t, each a mean over the few steps between two looks; the profile has the medians of these. Communication
is known by what it adds to a step, m = t − c: too little where the job hides a part of it behind its own computation,
too much where it waits for something else as well, such as latency or its loader.

The job's first worker adds what it saw of its model (`crossover.worker_report`): its bytes, the workers of all hosts,
and layer by layer the times that `crossover-bench predict --profile` reads.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from crossover.commands.job_group import JobGroup
from crossover.commands.launching import JobCommand, check_room, job_environment
from crossover.commands.screen import Screen
from crossover.commands.sockets import settle_socket, status_at
from crossover.commands.texts import milliseconds
from crossover.commands.usage import devices
from crossover.errors import Refused
from crossover.planning import JobProfile, profile_of, write_profile, write_text_whole
from crossover.policies import Sharing
from crossover.process import default_path
from crossover.settings import Settings
from crossover.status import HostStatus, SeatStatus
from crossover.tokens import Phase
from crossover.worker_report import WORKER_REPORTS, WorkerReport, first_report, layers_text

LAYERS = "layers"  # a folder of its own, so that `crossover plan DIR/*.json` reads profiles alone
WARM_UP = 0.2  # the part of the turns that is not counted
_SOURCE = "`crossover run --profile` on one host, from its arbiter's clock"


@dataclass(frozen=True, slots=True)
class PhaseStart:
    """A moment between two phases of a job at a token: turns ended and seconds held until then, all by the arbiter's
    clock."""

    token: str
    phase: Phase
    at_s: float
    num_turns: int
    held_s: float


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """Whole steps between two phases of one kind: how many, and the means of turn and step."""

    token: str
    num_steps: int
    turn_s: float
    step_s: float


@dataclass(slots=True)
class Observer:
    """Looks at one job that runs alone, and keeps when its phases began."""

    job: str
    path: Path
    screen: Screen
    starts: list[PhaseStart] = field(default_factory=list)

    def tick(self, now_s: float) -> None:
        """Look once, and draw the progress line."""
        self.look()
        turns = self.starts[-1].num_turns if self.starts else 0
        self.screen.show_progress(f"{self.job} alone · {turns} turns")

    def look(self) -> None:
        """Keep what the arbiter says of the job now."""
        status = status_at(self.path, limit_s=0.2)
        if status is not None:
            self.starts += phase_starts(status, self.job)


def phase_starts(status: HostStatus, job: str) -> list[PhaseStart]:
    """one start per device that the job computes on."""
    return [
        _phase_start(token.name, status.uptime_s, seat)
        for token in devices(status)
        for seat in token.seats
        if seat.job == job and seat.num_turns and seat.phase in (Phase.HOLDING, Phase.IDLE)
    ]


def _phase_start(token: str, uptime_s: float, seat: SeatStatus) -> PhaseStart:
    # the arbiter counts a turn under way; a start is what came before it
    present_s = seat.since_s if seat.phase is Phase.HOLDING else 0.0
    return PhaseStart(token, seat.phase, uptime_s - seat.since_s, seat.num_turns, seat.held_s - present_s)


def measured_steps(starts: Sequence[PhaseStart]) -> list[MeasuredSteps]:
    """The steps between neighbouring phases of one kind on one device, without the warm-up."""
    last = max((start.num_turns for start in starts), default=0)
    kept = [start for start in starts if start.num_turns >= WARM_UP * last]
    found: list[MeasuredSteps] = []
    for token in sorted({start.token for start in kept}):
        holding, idle = (
            [start for start in kept if start.token == token and start.phase is phase]
            for phase in (Phase.HOLDING, Phase.IDLE)
        )
        # of short turns more starts are seen while idle, of long ones while holding
        series = max(holding, idle, key=len)
        found += [_steps_between(*pair) for pair in pairwise(series) if pair[1].num_turns > pair[0].num_turns]
    return found


def _steps_between(before: PhaseStart, after: PhaseStart) -> MeasuredSteps:
    num_steps = after.num_turns - before.num_turns
    turn_s, step_s = (after.held_s - before.held_s) / num_steps, (after.at_s - before.at_s) / num_steps
    return MeasuredSteps(after.token, num_steps, turn_s, step_s)


def profile_from(job: str, starts: Sequence[PhaseStart], report: WorkerReport | None = None) -> JobProfile:
    """The profile of a job that ran alone, with its first worker's report; `Refused` where too few of its steps were
    seen."""
    found = measured_steps(starts)
    if not found:
        raise Refused(
            f"job {job!r} took too few turns on this host to be profiled ({len(starts)} looks saw one): it must call "
            "crossover.attach(model, optimizer), run for some seconds, and not say that it goes on without turns"
        )
    steps = [interval for interval in found for _ in range(interval.num_steps)]
    return profile_of(
        job,
        turns_s=[step.turn_s for step in steps],
        steps_s=[step.step_s for step in steps],
        world=report.world if report is not None else len({interval.token for interval in found}),
        memory=report.memory if report is not None else None,
        source=_SOURCE,
    )


def profile_jobs(
    arguments: argparse.Namespace, commands: Sequence[JobCommand], settings: Settings, screen: Screen
) -> int:
    """Run each job by itself and write its profile; the exit code of the first that failed, 1 where only the profile
    could not be taken."""
    check_room(arguments.profile, "free some of it, or name another --profile")
    # nobody to wait for, and none of the settings that belong to other jobs
    alone = replace(settings, sharing=Sharing.NAIVE, lead_rounds=0, shares=(), groups=(), beats=())
    socket_path = str(arguments.socket.absolute()) if arguments.socket else None
    path = Path(socket_path) if socket_path else default_path()
    settle_socket(socket_path, alone, screen.say)
    worst = 0
    for command in commands:
        observer = Observer(command.name, path, screen)
        group = JobGroup(screen, arguments.log_dir, observer.tick)
        with TemporaryDirectory(prefix="crossover-profile-") as reports:
            check_room(Path(reports), "free some of it, or set TMPDIR")
            environment = {**job_environment(command.name, alone, socket_path), WORKER_REPORTS: reports}
            try:
                (end,) = group.run([command], {command.name: environment})
            finally:
                screen.end_progress()
            observer.look()
            if group.code is not None:
                return group.code
            # a profile of a job that failed would be of another length than it says
            failed = end.code or _write(observer, arguments.profile, first_report(Path(reports)))
            worst = worst or failed
        if end.code and arguments.fail_fast:
            break
    return worst


def _write(observer: Observer, folder: Path, report: WorkerReport | None) -> int:
    say = observer.screen.say
    try:
        profile = profile_from(observer.job, observer.starts, report)
        path = folder / f"{profile.name}.json"
        write_profile(profile, path)
    except (Refused, OSError) as error:
        say(f"crossover: no profile of {observer.job}: {error}")
        return 1
    step, turn, rest = map(milliseconds, (profile.solo_s, profile.compute_s, profile.exposed_s))
    say(f"crossover: {path}: a step takes {step} alone, {turn} on the device, {rest} off it")
    if report is None:
        say(f"crossover: {profile.name} closed no attachment: its bytes and layers are not known")
    elif not report.layers:
        say(f"crossover: no layer of {profile.name} was timed (its model is compiled, or computed no gradients)")
    else:
        layers = folder / LAYERS / f"{profile.name}.json"
        try:
            write_text_whole(layers_text(profile.name, report), layers)
        except OSError as error:
            say(f"crossover: no layers of {profile.name}: {error}")
            return 1
        say(f"crossover: {layers}: its layers, for `crossover-bench predict --profile {layers}`")
    return 0
