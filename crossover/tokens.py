"""Tokens and the seats around them: immutable values, and how events change them.

A token guards one resource (a device, or the link) and is lent as a *lease* with a generation number that only grows.
Jobs sit around it in a fixed order, the same on every host. `join`, `ask`, `release`, `skip`, `pass_over` and `leave`
say how an event changes the token, `settle` lets a policy lend it; none does I/O or reads a clock. The arbiter, the
simulator, the model checker and the tests run the same code. They are tuples with names, since a simulation makes
millions of them, and a tuple is copied, compared and hashed in two fifths of a dataclass's time.

A job's turns are numbered from 0, its *rounds*. Its place in the queue is (pass, seat number) with pass = round ·
stride; a job with a stride half as long has two turns to another one's single turn (stride scheduling, Waldspurger and
Weihl, MIT/LCS/TM-528, 1995). A lease *aside* is no turn: it moves nobody's round, so that one worker may evaluate or
save while the others do not.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import lcm, nan
from typing import Any, NamedTuple, Protocol

from crossover.errors import LeaseLost, Refused

MAX_JOBS = 64
MAX_AHEAD_ROUNDS = 1000  # how far ahead of the others a job may agree to come in
MAX_SHARE = 64


class Phase(StrEnum):
    """Where a job is in its life at one token."""

    ABSENT = "absent"  # declared, has never come
    IDLE = "idle"  # does not want the token now: it communicates, or loads a batch
    WAITING = "waiting"
    HOLDING = "holding"
    LEFT = "left"


class Seat(NamedTuple):
    """One job at one token.

    `next_round` numbers the job's next turn, `stride` is its length in the queue, `stint` counts how often it has left,
    `generation` is that of the lease it holds (0: none), `aside` says that what it waits for or holds is no turn, and
    `passed` that it was not ready for so long that the others go on without it, until it asks for a turn again.
    """

    job: str
    phase: Phase = Phase.ABSENT
    next_round: int = 0
    stride: int = 1
    stint: int = 0
    generation: int = 0
    aside: bool = False
    passed: bool = False

    @property
    def counts(self) -> bool:
        """Whether the job has a place in the queue."""
        return self.phase is not Phase.LEFT and not self.passed

    @property
    def next_pass(self) -> int:
        """Where the next turn stands in the queue."""
        return self.next_round * self.stride


class Grant(NamedTuple):
    """A lease that was just given: whose, its generation (unique at this token, from 1), the number of the turn, and
    whether it is aside (then the number is that of the turn to come)."""

    job: str
    generation: int
    round: int
    aside: bool = False


class Token(NamedTuple):
    """The seats in their fixed order, the number of leases given so far, the job whose turn ended last, whether the
    last lease was aside, and when all declared jobs had come (NaN: not yet)."""

    seats: tuple[Seat, ...]
    generation: int = 0
    last: str = ""
    last_aside: bool = False
    opened_s: float = nan

    @property
    def holders(self) -> tuple[str, ...]:
        """Jobs that hold a lease: at most one, except where the policy shares."""
        return tuple(seat.job for seat in self.seats if seat.phase is Phase.HOLDING)

    @property
    def absent(self) -> tuple[str, ...]:
        """Declared jobs that have never come."""
        return tuple(seat.job for seat in self.seats if seat.phase is Phase.ABSENT)

    @property
    def is_open(self) -> bool:
        """Whether all declared jobs have come once."""
        return self.opened_s == self.opened_s

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

    def choose(self, token: Token, now_s: float) -> str | None:
        """The waiting job that gets a lease now, or None when the token stays where it is."""

    def wake_s(self, token: Token, now_s: float) -> float:
        """When `choose` may answer otherwise although nothing happens to the token; infinity where time plays no
        part."""


def new_token(jobs: Sequence[str], shares: Mapping[str, int] | None = None) -> Token:
    """A token that nobody holds, with one empty seat a declared job, in turn order.

    `shares[job]` is how many turns the job has in a cycle of the queue (default 1).
    """
    if not 1 <= len(jobs) <= MAX_JOBS or len(set(jobs)) != len(jobs):
        raise Refused(f"jobs must be 1 to {MAX_JOBS} different names, not {list(jobs)}")
    turns = dict.fromkeys(jobs, 1) | dict(shares or {})
    if set(turns) != set(jobs) or any(not 1 <= share <= MAX_SHARE for share in turns.values()):
        raise Refused(f"shares must be 1 to {MAX_SHARE} turns of jobs among {list(jobs)}, not {dict(shares or {})}")
    # strides are whole numbers, so that a queue's order never hangs on rounding
    cycle = lcm(*turns.values())
    return Token(tuple(Seat(job, stride=cycle // turns[job]) for job in jobs))


def join(token: Token, job: str, first_round: int = 0, last_generation: int = 0) -> Token:
    """The job takes its seat; who comes back enters at the latest pass that is due, or at `first_round` if later.

    `last_generation` is that of the job's last lease from an arbiter that is gone: the new one's leases are younger.
    """
    seat = token.seat(job)
    if seat.phase not in (Phase.ABSENT, Phase.LEFT):
        raise Refused(
            f"job {job!r} has its seat already: give every job on a device a name of its own, one process each"
        )
    # the first jobs begin together; who comes back must not have turns to make up for
    entry = 0 if seat.phase is Phase.ABSENT else entry_round(token, job)
    if first_round < 0 or (first_round > entry + MAX_AHEAD_ROUNDS and not last_generation):
        raise Refused(
            f"job {job!r} wants to enter at round {first_round}: agree on one from 0 to {entry + MAX_AHEAD_ROUNDS}"
        )
    # a lease of a dead arbiter may still be in use: none of ours has its number
    token = token._replace(generation=max(token.generation, last_generation))
    return _seated(token, seat._replace(phase=Phase.IDLE, next_round=max(first_round, entry)))


def entry_round(token: Token, job: str) -> int:
    """The first round of the job that no other job's turn is ahead of: where it enters when it comes late. A turn under
    way counts as taken, so that hosts which see its end and hosts which do not agree; and so do those of a job that is
    not waited for now, which had them behind nobody."""
    seat = token.seat(job)
    due = max(_pass_due(other) for other in token.seats if other.phase is not Phase.LEFT or other is seat)
    return -(-due // seat.stride)


def _pass_due(seat: Seat) -> int:
    under_way = seat.phase is Phase.HOLDING and not seat.aside
    return seat.next_pass + seat.stride * under_way


def ask(token: Token, job: str, *, aside: bool = False) -> Token:
    """The job wants its next turn, or a lease aside."""
    seat = token.seat(job)
    if seat.phase is not Phase.IDLE:
        raise Refused(f"job {job!r} asked for a turn while {seat.phase}: release the last turn first")
    # its old place in the queue is long past: it comes in like one that is late
    if seat.passed and not aside:
        seat = seat._replace(next_round=max(seat.next_round, entry_round(token, job)), passed=False)
    return _seated(token, seat._replace(phase=Phase.WAITING, aside=aside))


def release(token: Token, job: str, generation: int) -> Token:
    """The lease comes back; one of another generation is fenced with `LeaseLost` and changes nothing."""
    seat = token.seat(job)
    if seat.phase is not Phase.HOLDING or seat.generation != generation:
        raise LeaseLost(
            f"lease {generation} of job {job!r} had ended before its release (token at generation {token.generation}): "
            "make the turn shorter, or raise the arbiter's lease limit"
        )
    next_round = seat.next_round + (not seat.aside)
    idle = seat._replace(phase=Phase.IDLE, generation=0, aside=False, next_round=next_round)
    return _seated(token, idle, last=token.last if seat.aside else job, last_aside=seat.aside)


def pass_over(token: Token, job: str) -> Token:
    """The job is not waited for any more until it asks again, and then enters like one that comes late."""
    seat = token.seat(job)
    if seat.phase is not Phase.IDLE:
        raise Refused(f"job {job!r} cannot be passed over while {seat.phase}")
    return _seated(token, seat._replace(passed=True))


def skip(token: Token, job: str, num_rounds: int) -> Token:
    """The job gives up its next `num_rounds` turns; all its workers must, at the same round.

    A job that was passed over is waited for again, at that round or, if it is past already, at the latest one due.
    """
    seat = token.seat(job)
    if seat.phase is not Phase.IDLE or not 1 <= num_rounds <= MAX_AHEAD_ROUNDS:
        raise Refused(
            f"job {job!r} skips {num_rounds} rounds while {seat.phase}: skip 1 to {MAX_AHEAD_ROUNDS}, between turns"
        )
    next_round = seat.next_round + num_rounds
    if seat.passed:
        next_round = max(next_round, entry_round(token, job))
    return _seated(token, seat._replace(next_round=next_round, passed=False))


def leave(token: Token, job: str) -> Token:
    """The job is finished or dead: a lease it holds ends, and nobody waits for it any more."""
    seat = token.seat(job)
    gone = seat._replace(phase=Phase.LEFT, stint=seat.stint + 1, generation=0, aside=False, passed=False)
    return _seated(token, gone)


def settle(token: Token, policy: Policy, now_s: float = 0.0) -> tuple[Token, tuple[Grant, ...]]:
    """Lend the token for as long as the policy finds somebody; the new token, and the leases in the order given."""
    # the moment from which beats are counted
    if not token.is_open and not token.absent:
        token = token._replace(opened_s=now_s)
    grants: list[Grant] = []
    while (job := policy.choose(token, now_s)) is not None:
        seat = token.seat(job)
        grants.append(Grant(job, token.generation + 1, seat.next_round, seat.aside))
        holding = seat._replace(phase=Phase.HOLDING, generation=token.generation + 1)
        token = _seated(token, holding, generation=token.generation + 1)
    return token, tuple(grants)


def _seated(token: Token, seat: Seat, **changes: Any) -> Token:
    return token._replace(seats=tuple([seat if other.job == seat.job else other for other in token.seats]), **changes)
