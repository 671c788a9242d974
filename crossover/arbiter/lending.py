"""Lending a token: what a seated job says, and who gets the lease next.

The quick way: while a turn lasts, and another job has asked, it is worked out what the turn's release will do; then the
release is one comparison, and the next job's packet is on its way. Everything else goes by the rules of
`crossover.tokens` and the policy, through the table's `TokenCache`.
"""

import time
from collections.abc import Callable
from math import inf

from crossover import tokens
from crossover.arbiter.event_loop import Loop
from crossover.arbiter.seats import Connection, Table, foresee, granted, without_late
from crossover.errors import CrossoverError, Refused
from crossover.protocol import REQUEST_BYTES, Reply, ReplyKind, Request, RequestKind, release_of
from crossover.settings import Settings
from crossover.tokens import Grant, Token

ASKS_AN_ADAPTION = 32
_ACQUIRE = Request(RequestKind.ACQUIRE).pack()
_RELEASED = Reply(ReplyKind.RELEASED).pack()


class Lender:
    """Serves those who have a seat.

    `see_off` is called once for everybody who has lost it, when the others have been served. `adapt` is called in the
    middle of every ASKS_AN_ADAPTION-th turn, to fit the process to the machine's load.
    """

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        see_off: Callable[[Connection], None],
        adapt: Callable[[], None] | None = None,
    ) -> None:
        self._loop = loop
        self._idle_limit_s = settings.passes_over_after_s
        self._lease_limit_s = settings.lease_limit_s
        self._see_off = see_off
        self._adapt = adapt
        self._num_asks = 0

    def read(self, connection: Connection) -> None:
        """A packet has come from the job, or the end of them."""
        try:
            packet = connection.sock.recv(REQUEST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""  # a reset is an end like any other
        # by comparing bytes: unpacking would cost more than the hand-over itself
        if connection.generation and packet == connection.release:
            self._hand_over(connection)
        elif packet == _ACQUIRE:
            self._ask(connection)
        elif not packet:
            self.drop(connection)
        else:
            self._answer(connection, packet)

    def _hand_over(self, connection: Connection) -> None:
        """A release. Who was foreseen to be next starts at once, and the books are kept meanwhile."""
        table = connection.table
        foresight = table.foresight
        if foresight is None or foresight.holder is not connection:
            self._end_lease(connection)
        else:
            _, step, heir, grant, packet = foresight
            now_s = time.monotonic()
            # the token moves before anybody is told, so an event that comes now finds it right
            table.cache.advance(step)
            table.holder, table.foresight = heir, None
            # first of all: the device is idle until this arrives
            self.send(heir, packet)
            self._note_lease(heir, grant, now_s)
            _note_end(connection, now_s, is_turn=not connection.aside)
        # last: who releases sleeps until then, and leaves its core to the next
        self.send(connection, _RELEASED)

    def _answer(self, connection: Connection, packet: bytes) -> None:
        try:
            self._obey(connection, Request.unpack(packet))
        except CrossoverError as error:
            self.send(connection, Reply(ReplyKind.REFUSED, text=str(error)).pack())
            self.drop(connection)

    def _obey(self, connection: Connection, request: Request) -> None:
        if request.kind is RequestKind.ASIDE:
            self._ask(connection, aside=True)
        elif request.kind is RequestKind.RELEASE:
            self._release(connection, request.number)
        elif request.kind is RequestKind.SKIP:
            self._skip(connection, request.number)
        elif request.kind is RequestKind.PAUSE:
            self._pause(connection)
        else:
            raise Refused(f"this connection is job {connection.job!r} already: open one a seat, or a question")

    def _ask(self, connection: Connection, *, aside: bool = False) -> None:
        table, job, now_s = connection.table, connection.job, time.monotonic()
        try:
            # neither is in the cache's frame, so the rules are asked
            if aside or table.awaited:
                token = tokens.ask(table.token, job, aside=aside)
                connection.tally.since_s = now_s
                self.settle(table, token)
                return
            grants = table.cache.ask(job, now_s)
        except Refused as error:
            self.send(connection, Reply(ReplyKind.REFUSED, text=str(error)).pack())
            self.drop(connection)
            return
        connection.tally.since_s = now_s
        self._lend(table, grants, now_s)
        # there is time now: somebody else computes
        if not grants and (holder := table.holder) is not None:
            table.foresight = foresee(table, holder)
            self._num_asks += 1
            # in mid-turn, when it delays nobody
            if self._adapt is not None and self._num_asks % ASKS_AN_ADAPTION == 1:
                self._adapt()

    def _release(self, connection: Connection, generation: int) -> None:
        """A release of another lease than the present one: it was withdrawn, or never given."""
        # a lease that this seat never had: a defect, or an attack
        if not generation or generation != connection.fenced:
            raise Refused(f"job {connection.job!r} releases lease {generation} and has {connection.generation}")
        connection.fenced = 0
        text = (
            f"lease {generation} of job {connection.job!r} was withdrawn after {self._lease_limit_s} s: make "
            "the turn shorter, or raise the arbiter's lease limit"
        )
        self.send(connection, Reply(ReplyKind.FENCED, generation, text=text).pack())

    def _end_lease(self, connection: Connection) -> None:
        table, now_s = connection.table, time.monotonic()
        grants = table.cache.release(connection.job, now_s)
        table.holder = None
        self._lend(table, grants, now_s)
        _note_end(connection, now_s, is_turn=not connection.aside)

    def _skip(self, connection: Connection, num_rounds: int) -> None:
        token = tokens.skip(connection.table.token, connection.job, num_rounds)
        # told before the next job gets its turn, which may be a long one
        self.send(connection, Reply(ReplyKind.SKIPPED, round=token.seat(connection.job).next_round).pack())
        self.settle(connection.table, token)

    def _pause(self, connection: Connection) -> None:
        token = tokens.pass_over(connection.table.token, connection.job)
        self.send(connection, Reply(ReplyKind.PAUSED, round=token.seat(connection.job).next_round).pack())
        self.settle(connection.table, token)

    def settle(self, table: Table, token: Token) -> None:
        """Something has happened to the token; lend it on."""
        table.foresight = None
        # somebody of a dead arbiter may still be computing: note it, and lend nothing
        if table.awaited:
            table.cache.put(token)
            return
        now_s = time.monotonic()
        token, grants = tokens.settle(token, table.policy, now_s)
        table.cache.put(token)
        self._lend(table, grants, now_s)

    def _lend(self, table: Table, grants: tuple[Grant, ...], now_s: float) -> None:
        """Tell those who got a lease, and look when something may be due."""
        table.foresight = None
        for grant in grants:
            connection = table.seated.get(grant.job)
            if connection is not None:  # it may have been dropped on the way
                table.holder = connection
                self.send(connection, granted(grant))
                self._note_lease(connection, grant, now_s)
        if not table.is_timeless:
            table.wake_s = table.policy.wake_s(table.token, now_s)
            self._loop.wake_by(table.wake_s)
        if not table.cache.is_stalled:
            table.stall_deadline_s = inf
        elif self._idle_limit_s is not None and table.is_timeless and table.stall_deadline_s == inf:
            table.stall_deadline_s = now_s + self._idle_limit_s
            self._loop.wake_by(table.stall_deadline_s)

    def _note_lease(self, connection: Connection, grant: Grant, now_s: float) -> None:
        connection.generation, connection.fenced = grant.generation, 0
        connection.release, connection.aside = release_of(grant.generation), grant.aside
        tally = connection.tally
        tally.waited_s += now_s - tally.since_s
        tally.since_s = now_s
        if self._lease_limit_s is not None:
            connection.deadline_s = now_s + self._lease_limit_s
            self._loop.wake_by(connection.deadline_s)

    def send(self, connection: Connection, packet: bytes) -> None:
        """Tell the job something; one that is gone, or asks and never reads, loses its seat."""
        if not connection.is_open:
            return
        try:
            connection.sock.send(packet)
        except OSError:
            self.drop(connection)

    def drop(self, connection: Connection) -> None:
        """The job has left or died, or must go: its lease ends and the others go on."""
        if not connection.is_open:
            return
        # at once: what follows may come back here through `send`
        connection.is_open = False
        table, now_s = connection.table, time.monotonic()
        del table.seated[connection.job]
        if connection.generation:
            _note_end(connection, now_s, is_turn=False)
        connection.tally.since_s = now_s
        self.settle(table, tokens.leave(table.token, connection.job))
        self._see_off(connection)

    def withdraw(self, connection: Connection) -> None:
        """End a lease that is too old; its holder is told when it releases. Until it asks again nobody waits for its
        next turn either: it is known to be late."""
        generation = connection.generation
        self._end_lease(connection)
        connection.fenced = generation
        if self._idle_limit_s is not None:  # None: collectives need one order on all hosts, so nobody is passed over
            self.settle(connection.table, tokens.pass_over(connection.table.token, connection.job))

    def pass_over_late(self, table: Table, now_s: float) -> bool:
        """Go on without the jobs whose turn it is and that have not come; whether that helps anybody."""
        table.stall_deadline_s = inf
        token = without_late(table, now_s)
        if token is not None:
            self.settle(table, token)
        return token is not None


def _note_end(connection: Connection, now_s: float, *, is_turn: bool) -> None:
    connection.generation, connection.deadline_s = 0, inf
    tally = connection.tally
    tally.held_s += now_s - tally.since_s
    tally.since_s = now_s
    tally.num_turns += is_turn
