"""Who has the token now: pure rules over immutable values.

A token guards one resource (a device, or the link) and is lent as a *lease* with a generation number that only grows.
Jobs sit around it in a fixed order, the same on every host. The functions `join`, `ask`, `release` and `leave` say how
an event changes the token, `settle` lets a policy lend it; none does I/O or reads a clock. The arbiter, the simulator
and the tests run the same code.

A seat's place in the queue is the pair (round, seat number). The front is the least place among the live seats, and

- `Naive` lends to whoever asks, several at once: no turns;
- `Exclusive` lends only to the first job until it has left, then to the second, and so on;
- `Turns` lends to the front job only, so turns go round strictly; with `lead_rounds=1` a job that is not ready may be
  passed, and then nobody gets further than one round ahead of it.

`Turns` and `Exclusive` wait until every declared job has taken its seat once: hosts that began in different orders
would make all jobs slower (with `Turns`) or wait for each other for ever (with `Exclusive`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from crossover.errors import LeaseLost, Refused

MAX_JOBS = 64
MAX_AHEAD_ROUNDS = 1000  # how far ahead of the others a job may agree to come in


class Phase(StrEnum):
    """Where a job is in its life at one token."""

    ABSENT = "absent"  # declared, has never come
    IDLE = "idle"  # does not want the token now: it communicates, or loads a batch
    WAITING = "waiting"
    HOLDING = "holding"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Seat:
    """One job at one token.

    `next_round` numbers the job's next turn, `stint` counts how often it has left, and `generation` is that of the
    lease it holds (0: none).
    """

    job: str
    phase: Phase = Phase.ABSENT
    next_round: int = 0
    stint: int = 0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease that was just given: whose, its generation (unique at this token, from 1) and the number of the turn."""

    job: str
    generation: int
    round: int


@dataclass(frozen=True, slots=True)
class Token:
    """The seats in their fixed order and the number of leases given so far."""

    seats: tuple[Seat, ...]
    generation: int = 0

    @property
    def holders(self) -> tuple[str, ...]:
        """Jobs that hold a lease: at most one, except under `Naive`."""
        return tuple(seat.job for seat in self.seats if seat.phase is Phase.HOLDING)

    @property
    def absent(self) -> tuple[str, ...]:
        """Declared jobs that have never come."""
        return tuple(seat.job for seat in self.seats if seat.phase is Phase.ABSENT)

    def seat(self, job: str) -> Seat:
        """The job's seat; an undeclared job is refused."""
        for seat in self.seats:
            if seat.job == job:
                return seat
        declared = ", ".join(seat.job for seat in self.seats)
        raise Refused(
            f"unknown job {job!r}: this arbiter was started for {declared}; name one of them, or declare it there"
        )


class Policy(Protocol):
    """Decides, and does not act."""

    def choose(self, token: Token) -> str | None:
        """The waiting job that gets a lease now, or None when the token stays where it is."""


@dataclass(frozen=True, slots=True)
class Naive:
    """Everybody at once: the device is shared as its driver or the kernel sees fit."""

    def choose(self, token: Token) -> str | None:
        """The first job that waits."""
        return next((seat.job for seat in token.seats if seat.phase is Phase.WAITING), None)


@dataclass(frozen=True, slots=True)
class Exclusive:
    """One job after the other: the first keeps the token between its turns, until it leaves. Who comes back queues
    again."""

    def choose(self, token: Token) -> str | None:
        """The one job whose stint it is, if it waits."""
        staying = [seat for seat in token.seats if seat.phase is not Phase.LEFT]
        first = min(staying, key=lambda seat: seat.stint, default=None)
        return first.job if first is not None and first.phase is Phase.WAITING else None


@dataclass(frozen=True, slots=True)
class Turns:
    """One turn each, round after round, in seat order, among the jobs that are there.

    Strict turns (`lead_rounds=0`) reach the bound of `crossover.theory` for steady costs, however different the jobs
    are: behind a first-come-first-served link no job's messages arrive before those of the job in front of it, so there
    is never anybody to let pass. `lead_rounds=1` helps where a job is late for another reason (a slow loader, an
    evaluation), and reorders collectives between hosts: gloo bears that, NCCL and link turns do not.
    """

    lead_rounds: int = 0

    def __post_init__(self) -> None:
        if self.lead_rounds not in (0, 1):
            raise Refused(
                f"lead_rounds must be 0 (strict turns) or 1 (a late job may be passed), not {self.lead_rounds}"
            )

    def choose(self, token: Token) -> str | None:
        """The waiting job nearest the front, unless that would take it further ahead than `lead_rounds`."""
        if token.absent or token.holders:
            return None
        live = [(seat.next_round, place) for place, seat in enumerate(token.seats) if seat.phase is not Phase.LEFT]
        waiting = [place for place in live if token.seats[place[1]].phase is Phase.WAITING]
        if not waiting:
            return None
        front_round, front_place = min(live)
        nearest = min(waiting)
        allowed = nearest <= (front_round + self.lead_rounds, front_place)
        return token.seats[nearest[1]].job if allowed else None


class Sharing(StrEnum):
    """How jobs share their devices, by name."""

    EXCLUSIVE = "exclusive"
    HOLD = "hold"
    NAIVE = "naive"
    CROSSOVER = "crossover"

    @property
    def holds_through_communication(self) -> bool:
        """Whether a job keeps its turn until its messages have arrived (time slicing: gains nothing, and shows it)."""
        return self is Sharing.HOLD

    def policy(self, lead_rounds: int = 0) -> Policy:
        """The rule behind the name; `lead_rounds` concerns turns only."""
        match self:
            case Sharing.NAIVE:
                return Naive()
            case Sharing.EXCLUSIVE:
                return Exclusive()
            case Sharing.HOLD | Sharing.CROSSOVER:
                return Turns(lead_rounds)


def new_token(jobs: Sequence[str]) -> Token:
    """A token that nobody holds, with one empty seat a declared job, in turn order."""
    if not 1 <= len(jobs) <= MAX_JOBS or len(set(jobs)) != len(jobs):
        raise Refused(f"jobs must be 1 to {MAX_JOBS} different names, not {list(jobs)}")
    return Token(tuple(Seat(job) for job in jobs))


def join(token: Token, job: str, first_round: int = 0) -> Token:
    """The job takes its seat; who comes back enters at the latest round that is due, or at `first_round` if later."""
    seat = token.seat(job)
    if seat.phase not in (Phase.ABSENT, Phase.LEFT):
        raise Refused(
            f"job {job!r} has its seat already: give every job on a device a name of its own, one process each"
        )
    due = [other.next_round for other in token.seats if other.phase is not Phase.LEFT or other is seat]
    entry = 0 if seat.phase is Phase.ABSENT else max(due)
    if not 0 <= first_round <= entry + MAX_AHEAD_ROUNDS:
        raise Refused(
            f"job {job!r} wants to enter at round {first_round}: agree on one from 0 to {entry + MAX_AHEAD_ROUNDS}"
        )
    return _seated(token, replace(seat, phase=Phase.IDLE, next_round=max(first_round, entry)))


def ask(token: Token, job: str) -> Token:
    """The job wants its next turn."""
    seat = token.seat(job)
    if seat.phase is not Phase.IDLE:
        raise Refused(f"job {job!r} asked for a turn while {seat.phase}: release the last turn first")
    return _seated(token, replace(seat, phase=Phase.WAITING))


def release(token: Token, job: str, generation: int) -> Token:
    """The lease comes back; one of another generation is fenced with `LeaseLost` and changes nothing."""
    seat = token.seat(job)
    if seat.phase is not Phase.HOLDING or seat.generation != generation:
        raise LeaseLost(
            f"lease {generation} of job {job!r} had ended before its release (token at generation {token.generation}): "
            "make the turn shorter, or raise the arbiter's lease limit"
        )
    return _seated(token, replace(seat, phase=Phase.IDLE, next_round=seat.next_round + 1, generation=0))


def leave(token: Token, job: str) -> Token:
    """The job is finished or dead: a lease it holds ends, and nobody waits for it any more."""
    seat = token.seat(job)
    return _seated(token, replace(seat, phase=Phase.LEFT, stint=seat.stint + 1, generation=0))


def settle(token: Token, policy: Policy) -> tuple[Token, tuple[Grant, ...]]:
    """Lend the token for as long as the policy finds somebody; the new token, and the leases in the order given."""
    grants: list[Grant] = []
    while (job := policy.choose(token)) is not None:
        seat = token.seat(job)
        grants.append(Grant(job, token.generation + 1, seat.next_round))
        holding = replace(seat, phase=Phase.HOLDING, generation=token.generation + 1)
        token = replace(_seated(token, holding), generation=token.generation + 1)
    return token, tuple(grants)


def _seated(token: Token, seat: Seat) -> Token:
    return replace(token, seats=tuple(seat if other.job == seat.job else other for other in token.seats))
