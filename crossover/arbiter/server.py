"""The arbiter: who has a seat, for how long, and what a replacement must know. Turns are `crossover.arbiter.lending`'s.

A job that closes its connection or dies loses its lease at once; a process's death is seen through its pidfd, so that
sockets which its children inherited do not keep a lease alive.
"""

import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

from crossover import tokens
from crossover.arbiter.acceptor import MAX_PENDING, Acceptor
from crossover.arbiter.event_loop import Loop
from crossover.arbiter.lending import Lender
from crossover.arbiter.roster import Roster, RosterFile, birth_ticks, open_process
from crossover.arbiter.seats import PATIENCE_S, Awaited, Connection, SeatTally, Table
from crossover.arbiter.token_cache import TokenCache
from crossover.errors import Refused
from crossover.policies import Timeless
from crossover.protocol import (
    HEADER_BYTES,
    REPORT_BYTES,
    Reply,
    ReplyKind,
    Request,
    Resource,
)
from crossover.settings import Settings
from crossover.status import FRESH_S, HostStatus
from crossover.tokens import Phase, Token

MAX_SEATS = 256
MAX_TOKENS = 64
RESERVED_FILES = 32  # its own: socket, folder, epoll sets, log, and what the interpreter opens for a moment
MAX_NUMBER = 1 << 62  # of rounds and generations in a packet, so that none grows out of its field
GENERATIONS_AN_ARBITER = 1 << 32  # a replacement begins this far on: no lease of the dead one has its number


class Arbiter:
    """Owns the tokens, the seats and the loop; `run` serves until `stop`.

    With `roster_file` it keeps its roster there, and begins with `roster`, that of the arbiter which it replaces. With
    `linger_s` it stops when nobody has had a seat for so long. `adapt` is for `Lender`.
    """

    def __init__(
        self,
        listener: socket.socket,
        settings: Settings,
        *,
        roster_file: RosterFile | None = None,
        roster: Roster | None = None,
        linger_s: float = inf,
        adapt: Callable[[], None] | None = None,
    ) -> None:
        self.loop = Loop()
        self._settings = settings
        self._roster_file = roster_file
        self._linger_s = linger_s
        self._lender = Lender(self.loop, settings, self._see_off, adapt)
        self._tables: dict[tuple[Resource, str], Table] = {}
        self._connections: set[Connection] = set()
        self._num_workers: dict[str, int] = {}  # of jobs that have said so, on this host
        num_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._max_seats = min(MAX_SEATS, (num_files - RESERVED_FILES - MAX_PENDING) // 2)
        if self._max_seats < 1:
            raise Refused(
                f"{num_files} open files are allowed, and an arbiter needs {RESERVED_FILES + MAX_PENDING + 2} to "
                "give one seat: raise the limit with `ulimit -n`"
            )
        self._began_s = time.monotonic()
        # an arbiter that nobody ever comes to must end as well
        self._end_s = self._began_s + linger_s
        self._report = b""
        self._report_due_s = 0.0
        self._is_roster_old = False  # for want of room
        if roster is not None:
            self._restore(roster)
        self._acceptor = Acceptor(listener, self.loop, self)
        self.loop.wake_by(self._end_s)

    def run(self) -> None:
        """Serve until `stop` is called from one of the loop's own events."""
        self.loop.run(self._ring)

    def stop(self) -> None:
        """End the loop after the events at hand."""
        self.loop.stop()

    def close(self) -> None:
        """Hang up on everybody; each participant gets `ArbiterLost`, or looks for another arbiter."""
        self._acceptor.close()
        for connection in tuple(self._connections):
            self._hang_up(connection)
        self.loop.close()

    @property
    def has_seats_taken(self) -> bool:
        """Whether any job sits here."""
        return bool(self._connections)

    def seat(self, sock: socket.socket, pid: int, request: Request) -> None:
        """Let a connection join."""
        self._settings.token().seat(request.job)  # an undeclared job makes no table
        table = self._table(request.resource, request.device)
        if max(request.number, request.generation) > MAX_NUMBER:
            raise Refused(f"round {request.number}, generation {request.generation}: at most {MAX_NUMBER}")
        if len(self._connections) >= self._max_seats:
            raise Refused(f"the arbiter has {self._max_seats} seats taken: let some jobs leave")
        _check_return(table, request.job, pid)
        # may refuse, so it comes before a descriptor is opened
        token = tokens.join(table.token, request.job, request.number, request.generation)
        now_s = time.monotonic()
        # kept over a job's leaving and coming back: `crossover run` sums it up
        tally = table.tallies.setdefault(request.job, SeatTally(now_s))
        tally.since_s = now_s
        connection = Connection(sock, pid, birth_ticks(pid), _pid_fd(pid), table, request.job, tally)
        self._welcome(connection, token)

    def report(self) -> bytes:
        """The packet that answers STATUS; renewed after FRESH_S at the earliest."""
        now_s = time.monotonic()
        # writing the report costs as much as twenty turns
        if now_s >= self._report_due_s:
            seen = tuple(table.status(now_s) for table in self._tables.values())
            status = HostStatus(os.getpid(), now_s - self._began_s, self._settings, seen)
            self._report = Reply(ReplyKind.REPORT, text=status.to_json(REPORT_BYTES - HEADER_BYTES)).pack()
            self._report_due_s = now_s + FRESH_S
        return self._report

    def excuse(self, job: str, num_workers: int) -> bytes:
        """The packet that answers EXCUSE: no more than `num_workers` of the job's workers come to this host, so nobody
        waits for others; with 0 it has ended before it came. It may still come, as one that is late."""
        self._settings.token().seat(job)  # an undeclared job is refused
        if num_workers:
            self._num_workers[job] = num_workers
        is_due = num_workers and not self._have_all_come(job)
        num_excused = 0 if is_due else sum(self._excuse_at(table, job) for table in tuple(self._tables.values()))
        return Reply(ReplyKind.EXCUSED, round=num_excused).pack()

    def _have_all_come(self, job: str) -> bool:
        """Whether so many devices have seen the job as it has workers here; False where it has not said how many."""
        devices = [table for table in self._tables.values() if table.resource is Resource.DEVICE]
        num_come = sum(table.token.seat(job).phase is not Phase.ABSENT for table in devices)
        return num_come >= self._num_workers.get(job, len(devices) + 1)

    def _excuse_at(self, table: Table, job: str) -> bool:
        """Whether the table waited for the job; it does no more."""
        is_absent = table.token.seat(job).phase is Phase.ABSENT and job not in table.awaited
        if is_absent:
            _say(f"no worker of job {job!r} will come to {table.name}: the others go on")
            self._report_due_s = 0.0  # an old report would have it absent still
            self._lender.settle(table, tokens.leave(table.token, job))
        return is_absent

    def _welcome(self, connection: Connection, token: Token) -> None:
        """Note the seat in the roster, and only then tell the job that it has one."""
        table, job = connection.table, connection.job
        # noted first: the roster lists who is seated
        table.cache.put(token)
        table.seated[job] = connection
        self._write_roster()
        if (awaited := table.awaited.pop(job, None)) is not None:
            self._watch_no_more(awaited.pid_fd)
        self._connections.add(connection)
        self._end_s = inf
        self.loop.watch(connection.sock.fileno(), partial(self._lender.read, connection), urgent=True)
        if connection.pid_fd is not None:
            self.loop.watch(connection.pid_fd, partial(self._lender.drop, connection), urgent=True)
        round_, extent = token.seat(job).next_round, self._settings.sharing.extent
        self._lender.send(connection, Reply(ReplyKind.WELCOME, token.generation, round_, extent).pack())
        self._lender.settle(table, table.token)

    def _table(self, kind: Resource, device: str) -> Table:
        if (kind, device) not in self._tables:
            if len(self._tables) == MAX_TOKENS:
                raise Refused(f"the arbiter has {MAX_TOKENS} tokens already: name the same device in every job")
            deadline_s = time.monotonic() + self._settings.gather_limit_s
            policy = self._settings.policy(kind)
            table = Table(
                kind,
                device,
                TokenCache(self._settings.token(), policy),
                policy,
                isinstance(policy, Timeless),
                deadline_s,
                report_s=time.monotonic() + PATIENCE_S,
            )
            complete = [job for job in self._num_workers if kind is Resource.DEVICE and self._have_all_come(job)]
            self._tables[kind, device] = table
            for job in complete:
                self._excuse_at(table, job)
            self.loop.wake_by(min(deadline_s, self._tables[kind, device].report_s))
        return self._tables[kind, device]

    def _see_off(self, connection: Connection) -> None:
        """Note that the job has no seat any more, and if it listens still, say so."""
        # the others have been served already: what follows writes a file
        self._connections.discard(connection)
        self._write_roster()
        with suppress(OSError):
            connection.sock.send(Reply(ReplyKind.LEFT).pack())
        self._hang_up(connection)
        if not self._connections:
            self._end_s = time.monotonic() + self._linger_s
            self.loop.wake_by(self._end_s)

    def _hang_up(self, connection: Connection) -> None:
        # events of this round may still name it
        connection.is_open = False
        self.loop.forget(connection.sock.fileno())
        connection.sock.close()
        self._watch_no_more(connection.pid_fd)

    def _watch_no_more(self, pid_fd: int | None) -> None:
        if pid_fd is not None:
            self.loop.forget(pid_fd)
        _close(pid_fd)

    def _write_roster(self) -> None:
        """Turns go on where there is no room for it: then a replacement waits, until its gather limit, for every
        declared job that does not come back."""
        self._report_due_s = 0.0  # who is here has changed, so no old report is given out
        if self._roster_file is None:
            return
        entries = tuple(entry for table in self._tables.values() for entry in table.entries())
        generation = max((table.token.generation for table in self._tables.values()), default=0)
        try:
            self._roster_file.write(Roster(self._settings, generation, entries))
            self._is_roster_old = False
        except (OSError, Refused) as error:
            if not self._is_roster_old:
                _say(f"cannot write {self._roster_file} ({error}): jobs would wait longer if this arbiter died")
            self._is_roster_old = True

    def _restore(self, roster: Roster) -> None:
        """Begin where the dead arbiter ended: with younger leases, and none before its processes are accounted for."""
        # far beyond what the dead one can have given, since it wrote its roster at joins only
        generation = (roster.generation // GENERATIONS_AN_ARBITER + 1) * GENERATIONS_AN_ARBITER
        # nobody knows whether it holds a lease, so it has as long as one may last
        patience_s = self._settings.lease_limit_s or self._settings.gather_limit_s
        for entry in roster.entries:
            table = self._table(entry.resource, entry.device)
            table.restore(entry, generation)
            # it left properly: only its number of stints matters
            if not entry.is_here:
                continue
            awaited = Awaited(entry, open_process(entry), time.monotonic() + patience_s)
            table.awaited[entry.job] = awaited
            if awaited.pid_fd is not None:
                self.loop.watch(awaited.pid_fd, partial(self._stop_awaiting, table, entry.job), urgent=True)
            elif entry.pid > 0:  # dead
                awaited.deadline_s = 0.0
            self.loop.wake_by(awaited.deadline_s)

    def _stop_awaiting(self, table: Table, job: str) -> None:
        """The process is dead, or has had its time."""
        self._watch_no_more(table.awaited.pop(job).pid_fd)
        self._lender.settle(table, tokens.leave(table.token, job))

    def _ring(self, now_s: float) -> float:
        """Do what time asks for, and say when it asks next."""
        # every deadline is looked at on every alarm: there are a handful, and alarms are rare
        self._acceptor.expire(now_s)
        limit_s = self._settings.lease_limit_s
        for connection in tuple(self._connections):
            if connection.is_open and connection.deadline_s <= now_s:
                _say(f"lease {connection.generation} of job {connection.job!r} withdrawn after its {limit_s} s")
                self._lender.withdraw(connection)
        for table in tuple(self._tables.values()):
            for job, awaited in tuple(table.awaited.items()):
                if awaited.deadline_s <= now_s:
                    self._stop_awaiting(table, job)
            if table.report_s <= now_s:
                self._report_absent(table)
            if table.gather_deadline_s <= now_s:
                self._give_up_on_absent(table)
            # a policy of beats has somebody due
            if table.wake_s <= now_s:
                self._lender.settle(table, table.token)
            if table.stall_deadline_s <= now_s and self._lender.pass_over_late(table, now_s):
                _say(f"{table.name} goes on without a job that did not come in {self._settings.idle_limit_s} s")
        # ending now would leave a replacement of this replacement without a roster
        is_awaiting = any(table.awaited for table in self._tables.values())
        if self._end_s <= now_s and not is_awaiting:
            self.stop()
        ends_s = [connection.deadline_s for connection in self._connections]
        looks_s = [table.next_deadline_s for table in self._tables.values()]
        end_s = self._end_s if self._end_s > now_s or not is_awaiting else now_s + self._linger_s
        return min([*ends_s, *looks_s, self._acceptor.next_deadline_s, end_s])

    def _report_absent(self, table: Table) -> None:
        table.report_s = inf
        absent = [job for job in table.token.absent if job not in table.awaited]
        if absent and table.seated:
            _say(
                f"{', '.join(table.seated)} waits at {table.name}: no process has joined as {', '.join(absent)} yet; "
                f"start it, or lower gather_limit_s ({self._settings.gather_limit_s:g} s) to go on without it"
            )

    def _give_up_on_absent(self, table: Table) -> None:
        table.gather_deadline_s = inf
        token = table.token
        for job in token.absent:
            # one that is awaited has a deadline of its own
            if job not in table.awaited:
                _say(f"job {job!r} did not come to {table.name} in {self._settings.gather_limit_s} s")
                token = tokens.leave(token, job)
        self._lender.settle(table, token)


def _check_return(table: Table, job: str, pid: int) -> None:
    awaited = table.awaited.get(job)
    if awaited is not None and awaited.entry.pid not in (0, pid) and awaited.pid_fd is not None:
        raise Refused(f"job {job!r} has its seat already, process {awaited.entry.pid}: end that process first")


def _pid_fd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None for one in another PID namespace."""
    with suppress(ProcessLookupError):  # gone already; its socket says so too
        return os.pidfd_open(pid) if pid > 0 else None
    return None


def _close(fd: int | None) -> None:
    if fd is not None:
        os.close(fd)


def _say(event: str) -> None:
    with suppress(OSError):  # a full disk under the log ends no turns
        print(f"crossover: {event}", file=sys.stderr, flush=True)
