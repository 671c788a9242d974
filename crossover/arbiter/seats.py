"""Who sits where: the arbiter's connections and its tokens."""

import socket
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from crossover import tokens
from crossover.arbiter.roster import RosterEntry
from crossover.arbiter.token_cache import TokenCache, Transition
from crossover.protocol import MAGIC, REPLY_HEADER, ReplyKind, Resource
from crossover.status import SeatStatus, TokenStatus
from crossover.tokens import Grant, Phase, Policy, Seat, Token

PATIENCE_S = 3.0  # a wait that lasts longer is reported


@dataclass(slots=True, eq=False)
class SeatTally:
    """What a job had at one token so far; `since_s` is when its phase began."""

    since_s: float
    num_turns: int = 0
    held_s: float = 0.0
    waited_s: float = 0.0


@dataclass(slots=True, eq=False)
class Connection:
    """One process in its seat. `generation` is that of the lease it holds (0: none), `release` the packet that ends it,
    `deadline_s` when it ends at the latest, and `aside` says that it is no turn. `fenced` is the generation of a lease
    that was withdrawn and not released yet."""

    sock: socket.socket
    pid: int
    birth_ticks: int
    pid_fd: int | None
    table: "Table"
    job: str
    tally: SeatTally
    # packed once when it is granted, compared with each packet that comes
    generation: int = 0
    release: bytes = b""
    aside: bool = False
    fenced: int = 0
    deadline_s: float = inf
    is_open: bool = True


@dataclass(slots=True, eq=False)
class Awaited:
    """A process that had a seat under the arbiter before this one, and may still be in its turn."""

    entry: RosterEntry
    pid_fd: int | None
    deadline_s: float


@dataclass(slots=True, eq=False)
class Table:
    """A token with the connections that sit around it; nothing is lent while somebody is `awaited`. The deadlines are
    those of jobs that have not come, of the policy's next look at the clock, and of a job whose turn it is; `holder` is
    whoever got the last lease and has not given it back."""

    resource: Resource
    device: str
    cache: TokenCache
    policy: Policy
    is_timeless: bool
    gather_deadline_s: float
    # infinity is “never” for all of these, so that a minimum needs no cases
    wake_s: float = inf
    stall_deadline_s: float = inf
    report_s: float = inf  # when it is reported who has not come
    holder: Connection | None = None
    # forgotten whenever anything else happens to the token
    foresight: "Foresight | None" = None
    seated: dict[str, Connection] = field(default_factory=dict)
    awaited: dict[str, Awaited] = field(default_factory=dict)
    tallies: dict[str, SeatTally] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As people read it."""
        return f"{self.resource.name.lower()} {self.device}"

    @property
    def next_deadline_s(self) -> float:
        """The first moment at which something here may be due, leases apart."""
        ends_s = (awaited.deadline_s for awaited in self.awaited.values())
        return min(self.gather_deadline_s, self.wake_s, self.stall_deadline_s, self.report_s, *ends_s)

    @property
    def token(self) -> Token:
        """Its token as it is."""
        return self.cache.token

    def status(self, now_s: float) -> TokenStatus:
        """What it tells of itself."""
        token = self.token
        seats = tuple(self._seat_status(seat, now_s) for seat in token.seats)
        return TokenStatus(self.name, self.resource, self.device, token.is_open, token.generation, seats)

    def entries(self) -> list[RosterEntry]:
        """Who must be accounted for if this arbiter dies: those who sit here, those still awaited, those who left."""
        return [
            self._entry(seat) for seat in self.token.seats if seat.phase is not Phase.ABSENT or seat.job in self.awaited
        ]

    def restore(self, entry: RosterEntry, generation: int) -> None:
        """Take a seat over from an arbiter that is gone; leases are numbered from `generation` on."""
        phase, token = Phase.ABSENT if entry.is_here else Phase.LEFT, self.token
        seats = tuple(
            seat._replace(phase=phase, stint=entry.stint) if seat.job == entry.job else seat for seat in token.seats
        )
        self.cache.put(token._replace(seats=seats, generation=generation))

    def _entry(self, seat: Seat) -> RosterEntry:
        # its process is that of the arbiter before, and may yet be in its turn
        if (awaited := self.awaited.get(seat.job)) is not None:
            return awaited.entry
        if (connection := self.seated.get(seat.job)) is None:
            return RosterEntry(self.resource, self.device, seat.job, seat.stint, is_here=False)
        who = {"pid": connection.pid, "birth_ticks": connection.birth_ticks}
        return RosterEntry(self.resource, self.device, seat.job, seat.stint, is_here=True, **who)

    def _seat_status(self, seat: Seat, now_s: float) -> SeatStatus:
        tally = self.tallies.get(seat.job, SeatTally(now_s))
        since_s = now_s - tally.since_s
        awaited = self.awaited.get(seat.job)
        process = self.seated.get(seat.job) or (None if awaited is None else awaited.entry)
        return SeatStatus(
            job=seat.job,
            phase=seat.phase,
            next_round=seat.next_round,
            num_turns=tally.num_turns,
            held_s=tally.held_s + (since_s if seat.phase is Phase.HOLDING else 0.0),
            waited_s=tally.waited_s + (since_s if seat.phase is Phase.WAITING else 0.0),
            since_s=since_s,
            pid=process.pid if process is not None else 0,
            passed=seat.passed,
        )


class Foresight(NamedTuple):
    """What the present holder's release will do if nothing happens before: who is next, and the packet that says so."""

    holder: Connection
    step: Transition
    heir: Connection
    grant: Grant
    packet: bytes


def foresee(table: Table, holder: Connection) -> Foresight | None:
    """Look ahead while a turn lasts, so that the hand-over is one packet away."""
    found = table.cache.next_release(holder.job)
    # none is known yet, or several get a lease at once: then the usual way is taken
    if found is None or len(found[1]) != 1:
        return None
    step, (grant,) = found
    heir = table.seated.get(grant.job)
    # None: the heir's connection has ended, and the event is on its way
    return None if heir is None else Foresight(holder, step, heir, grant, granted(grant))


def without_late(table: Table, now_s: float) -> Token | None:
    """The token with the jobs passed over that must be for somebody to get it; None where that would help nobody."""
    token = table.token
    for late in sorted((seat for seat in token.seats if seat.phase is Phase.IDLE), key=lambda seat: seat.next_pass):
        if late.counts:
            # one after the other: passing over more than it takes would reorder jobs for nothing
            token = tokens.pass_over(token, late.job)
            if tokens.settle(token, table.policy, now_s)[1]:
                return token
    return None


def granted(grant: Grant) -> bytes:
    """The packet that tells a job of its lease."""
    return REPLY_HEADER.pack(MAGIC, ReplyKind.GRANTED, 0, grant.generation, grant.round)
