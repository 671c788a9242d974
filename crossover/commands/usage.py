"""What jobs use of a host's tokens, from its arbiter's statuses: sums over a run, and rates between two moments."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from crossover.protocol import Resource
from crossover.status import HostStatus, SeatStatus, TokenStatus
from crossover.tokens import Phase


@dataclass(frozen=True, slots=True)
class Use:
    """Turns taken, and seconds for which the token was held and waited for."""

    num_turns: int = 0
    held_s: float = 0.0
    waited_s: float = 0.0

    def __add__(self, other: "Use") -> "Use":
        return Use(self.num_turns + other.num_turns, self.held_s + other.held_s, self.waited_s + other.waited_s)

    def __sub__(self, other: "Use") -> "Use":
        return Use(self.num_turns - other.num_turns, self.held_s - other.held_s, self.waited_s - other.waited_s)


SeatKey = tuple[str, str]  # a token's name, a job's


def uses(tokens: Iterable[TokenStatus]) -> dict[SeatKey, Use]:
    """Every seat's use since the arbiter began."""
    return {
        (token.name, seat.job): Use(seat.num_turns, seat.held_s, seat.waited_s)
        for token in tokens
        for seat in token.seats
    }


def devices(status: HostStatus) -> list[TokenStatus]:
    """The tokens that guard devices; the link's have no turns of computation."""
    return [token for token in status.tokens if token.resource is Resource.DEVICE]


def is_idle(status: HostStatus) -> bool:
    """Whether no job sits at any of its tokens."""
    return all(seat.phase in (Phase.ABSENT, Phase.LEFT) for token in status.tokens for seat in token.seats)


@dataclass(slots=True)
class _Stretch:
    """One arbiter's part of a run: what was there before, its first status with a turn in it, and its last."""

    before: Mapping[SeatKey, Use]
    last: HostStatus
    first: HostStatus | None = None
    changed: HostStatus | None = None

    def observe(self, status: HostStatus) -> None:
        """Take in a status that is younger than those before."""
        now = uses(devices(status))
        # waiting for jobs to come is no part of the time in which they share
        if self.first is None and any(use != self.before.get(seat, Use()) for seat, use in now.items()):
            self.first = status
        # nor is what comes after the last turn
        if now != uses(devices(self.last)):
            self.changed = status
        self.last = status

    def sums(self) -> dict[SeatKey, Use]:
        """Each seat's use in this part of the run."""
        return {seat: use - self.before.get(seat, Use()) for seat, use in uses(devices(self.last)).items()}


class Ledger:
    """Sums over all arbiters that served one path during a run; one that is replaced begins from nothing again.

    `baseline` is the status that was there before the run, which does not count.
    """

    def __init__(self, baseline: HostStatus | None = None) -> None:
        self._stretches = [] if baseline is None else [_Stretch(uses(devices(baseline)), baseline)]

    def observe(self, status: HostStatus) -> None:
        """Take in a status that is younger than those before."""
        # another process: its counts begin at nothing
        if not self._stretches or self._stretches[-1].last.pid != status.pid:
            self._stretches.append(_Stretch({}, status))
        self._stretches[-1].observe(status)

    def sums(self) -> dict[SeatKey, Use]:
        """Each seat's use until now."""
        total: dict[SeatKey, Use] = {}
        for stretch in self._stretches:
            for seat, use in stretch.sums().items():
                total[seat] = total.get(seat, Use()) + use
        return total

    def of_job(self, job: str) -> Use:
        """A job's use of this host: turns of its busiest device, times as the mean over its devices."""
        # a device on which the job never sat would halve its mean
        taken = [use for (_, name), use in self.sums().items() if name == job and use != Use()]
        if not taken:
            return Use()
        held_s, waited_s = (
            sum(times_s) / len(taken) for times_s in zip(*((u.held_s, u.waited_s) for u in taken), strict=True)
        )
        return Use(max(use.num_turns for use in taken), held_s, waited_s)

    def busy(self) -> dict[str, float]:
        """The part of the time from the first turn to the last in which each device was held; above 1 where several
        jobs hold it together."""
        held_s: dict[str, float] = {}
        for first, last in self._spans():
            earlier = uses(devices(first))
            for seat, use in uses(devices(last)).items():
                held_s[seat[0]] = held_s.get(seat[0], 0.0) + use.held_s - earlier.get(seat, Use()).held_s
        elapsed_s = self.elapsed_s()
        return {name: spent_s / elapsed_s for name, spent_s in held_s.items()} if elapsed_s > 0 else {}

    def elapsed_s(self) -> float:
        """Seconds from the first turn to the last."""
        return sum(last.uptime_s - first.uptime_s for first, last in self._spans())

    def _spans(self) -> list[tuple[HostStatus, HostStatus]]:
        spans = [(stretch.first, stretch.changed) for stretch in self._stretches]
        return [(first, last) for first, last in spans if first is not None and last is not None]


@dataclass(frozen=True, slots=True)
class JobRate:
    """One job at one token between two moments: fractions are of the time between them."""

    job: str
    phase: str
    since_s: float
    num_turns: int
    turns_per_s: float
    held: float
    waited: float
    turn_s: float | None


@dataclass(frozen=True, slots=True)
class TokenRate:
    """One token between two moments."""

    name: str
    is_open: bool
    generation: int
    jobs: tuple[JobRate, ...]

    @property
    def busy(self) -> float:
        """The part of the time in which it was held."""
        return sum(job.held for job in self.jobs)

    def gain(self, solo_s: Mapping[str, float]) -> float | None:
        """Steps a second weighed by each job's solo step time: how many devices of its own each second was worth.
        None where a job that takes turns has no profile."""
        running = [job for job in self.jobs if job.turns_per_s > 0]
        # with a job left out the sum would look like a loss
        if not running or any(job.job not in solo_s for job in running):
            return None
        return sum(job.turns_per_s * solo_s[job.job] for job in running)


def rates(before: HostStatus | None, after: HostStatus) -> tuple[TokenRate, ...]:
    """What happened between two statuses of one arbiter; since its beginning where `before` is none of its own."""
    earlier: Mapping[SeatKey, Use] = {}
    elapsed_s = after.uptime_s
    if before is not None and before.pid == after.pid and before.uptime_s < after.uptime_s:
        earlier, elapsed_s = uses(before.tokens), after.uptime_s - before.uptime_s
    return tuple(
        TokenRate(
            token.name,
            token.is_open,
            token.generation,
            tuple(_job_rate(seat, earlier.get((token.name, seat.job), Use()), elapsed_s) for seat in token.seats),
        )
        for token in after.tokens
    )


def _job_rate(seat: SeatStatus, earlier: Use, elapsed_s: float) -> JobRate:
    spent = Use(seat.num_turns, seat.held_s, seat.waited_s) - earlier
    return JobRate(
        seat.job,
        str(seat.phase),
        seat.since_s,
        seat.num_turns,
        spent.num_turns / elapsed_s,
        spent.held_s / elapsed_s,
        spent.waited_s / elapsed_s,
        spent.held_s / spent.num_turns if spent.num_turns else None,
    )
