"""The arbiter's selector loop: packets in, the pure rules decide, packets out.

Nothing is polled. A job that closes its connection or dies loses its lease at once; a process's death is seen through
its pidfd, so that sockets which its children inherited do not keep a lease alive. While a turn lasts the loop works out
what its release will mean, so that a hand-over is one comparison and one packet away.
"""

import os
import resource
import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf

from crossover import tokens
from crossover.errors import CrossoverError, LeaseLost, Refused
from crossover.protocol import REQUEST_BYTES, Answer, Ask, Reply, Request, Resource, peer
from crossover.settings import Settings
from crossover.tables import Connection, Table, foresee, granted
from crossover.tokens import Grant, Token

MAX_CONNECTIONS = 256
MAX_TOKENS = 64
HELLO_LIMIT_S = 5.0
_RELEASED = Reply(Answer.RELEASED).pack()


class Arbiter:
    """Owns the tokens, the connections and the selector; `run` serves until `stop`."""

    def __init__(self, listener: socket.socket, settings: Settings) -> None:
        self._listener = listener
        self._settings = settings
        self._tables: dict[tuple[Resource, str], Table] = {}
        self._connections: set[Connection] = set()
        self._max_connections = min(MAX_CONNECTIONS, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 32) // 2)
        self._alarm_s = inf  # not later than the first deadline
        self._epoll = select.epoll()
        self._reactions: dict[int, Callable[[], None]] = {}
        self._running = True
        self.watch(listener.fileno(), self._accept)

    def run(self) -> None:
        """Serve until `stop` is called from one of the loop's own events."""
        while self._running:
            for fd, _ in self._epoll.poll(self._patience_s()):
                if (react := self._reactions.get(fd)) is not None:  # else closed by an event before it
                    react()
            if self._alarm_s < inf:
                self._expire(time.monotonic())

    def stop(self) -> None:
        """End the loop after the events at hand."""
        self._running = False

    def watch(self, fd: int, react: Callable[[], None]) -> None:
        """Call `react` from the loop whenever `fd` is readable."""
        self._reactions[fd] = react
        self._epoll.register(fd, select.EPOLLIN)

    def close(self) -> None:
        """Hang up on everybody; each participant gets `ArbiterLost`."""
        for connection in tuple(self._connections):
            self._hang_up(connection)
        self._epoll.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        sock.setblocking(False)
        pid, uid = peer(sock)
        if uid != os.geteuid():
            self._turn_away(sock, f"this arbiter serves user {os.geteuid()} and not user {uid}: start one of your own")
        elif len(self._connections) >= self._max_connections:
            self._turn_away(sock, f"the arbiter has {self._max_connections} connections already: close some")
        else:
            self._welcome(Connection(sock, _pid_fd(pid), self._deadline_s(HELLO_LIMIT_S)))

    def _welcome(self, connection: Connection) -> None:
        self._connections.add(connection)
        self.watch(connection.sock.fileno(), partial(self._read, connection))
        if connection.pid_fd is not None:
            self.watch(connection.pid_fd, partial(self._drop, connection))

    def _turn_away(self, sock: socket.socket, reason: str) -> None:
        with sock, suppress(OSError):  # it may have hung up before it was told
            sock.send(Reply(Answer.REFUSED, text=reason).pack())

    def _read(self, connection: Connection) -> None:
        try:
            packet = connection.sock.recv(REQUEST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""  # a reset is an end like any other
        if not packet:
            self._drop(connection)
        elif not self._hand_over(connection, packet):
            self._answer(connection, packet)
        if connection.table is not None:
            foresee(connection.table, time.monotonic())

    def _hand_over(self, connection: Connection, packet: bytes) -> bool:
        """The quick way for a release that was foreseen; False where the usual one has to be gone."""
        table = connection.table
        foresight = table.foresight if table is not None else None
        if table is None or foresight is None or packet != foresight.packet or table.token is not foresight.before:
            return False
        if not connection.generation:
            return False
        table.token = foresight.after
        self._send(foresight.heir, foresight.granted)  # the next job starts first, the acknowledgement follows
        self._send(connection, _RELEASED)
        connection.generation, connection.deadline_s = 0, inf
        self._note_lease(foresight.heir, foresight.grant)
        return True

    def _answer(self, connection: Connection, packet: bytes) -> None:
        try:
            self._obey(connection, Request.unpack(packet))
        except LeaseLost as error:
            self._send(connection, Reply(Answer.FENCED, text=str(error)).pack())
        except CrossoverError as error:
            self._send(connection, Reply(Answer.REFUSED, text=str(error)).pack())
            self._drop(connection)

    def _obey(self, connection: Connection, request: Request) -> None:
        table = connection.table
        if request.kind is Ask.JOIN:
            self._join(connection, request)
        elif table is None:
            raise Refused("the first packet must be JOIN: use crossover.Participant")
        elif request.kind is Ask.ACQUIRE:
            self._settle(table, tokens.ask(table.token, connection.job))
        elif request.kind is Ask.ASIDE:
            self._settle(table, tokens.ask(table.token, connection.job, aside=True))
        elif request.kind is Ask.SKIP:
            self._skip(connection, table, request.number)
        else:
            self._end_lease(connection, table, request.number)
            self._send(connection, _RELEASED)

    def _join(self, connection: Connection, request: Request) -> None:
        if connection.table is not None:
            raise Refused(f"this connection is job {connection.job!r} already: open one a seat")
        table = self._table(request.resource, request.device)
        token = tokens.join(table.token, request.job, request.number)
        connection.table, connection.job, connection.deadline_s = table, request.job, inf
        table.seated[request.job] = connection
        table.token = token
        first_round, extent = token.seat(request.job).next_round, self._settings.sharing.extent
        self._send(connection, Reply(Answer.WELCOME, token.generation, first_round, extent).pack())
        self._settle(table, table.token)

    def _table(self, kind: Resource, device: str) -> Table:
        if (kind, device) not in self._tables:
            if len(self._tables) == MAX_TOKENS:
                raise Refused(f"the arbiter has {MAX_TOKENS} tokens already: name the same device in every job")
            deadline_s = self._deadline_s(self._settings.gather_limit_s)
            name = f"{kind.name.lower()} {device}"
            policy = self._settings.policy(kind)
            self._tables[kind, device] = Table(name, self._settings.token(), policy, deadline_s)
        return self._tables[kind, device]

    def _settle(self, table: Table, token: Token) -> None:
        now_s = time.monotonic()
        table.token, grants = tokens.settle(token, table.policy, now_s)
        table.wake_s = table.policy.wake_s(table.token, now_s)
        self._alarm_s = min(self._alarm_s, table.wake_s)
        for grant in grants:
            connection = table.seated.get(grant.job)
            if connection is not None:  # it may have been dropped on the way
                self._send(connection, granted(grant))
                self._note_lease(connection, grant)

    def _note_lease(self, connection: Connection, grant: Grant) -> None:
        connection.generation = grant.generation
        if self._settings.lease_limit_s is not None:
            connection.deadline_s = self._deadline_s(self._settings.lease_limit_s)

    def _skip(self, connection: Connection, table: Table, num_rounds: int) -> None:
        token = tokens.skip(table.token, connection.job, num_rounds)
        self._send(connection, Reply(Answer.SKIPPED, round=token.seat(connection.job).next_round).pack())
        self._settle(table, token)

    def _end_lease(self, connection: Connection, table: Table, generation: int) -> None:
        token = tokens.release(table.token, connection.job, generation)
        connection.generation, connection.deadline_s = 0, inf
        self._settle(table, token)

    def _send(self, connection: Connection, packet: bytes) -> None:
        if not connection.is_open:
            return
        try:
            connection.sock.send(packet)
        except OSError:  # gone, or it asks and never reads; its seat is free at once
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        if not connection.is_open:
            return
        self._hang_up(connection)
        table = connection.table
        if table is not None:
            del table.seated[connection.job]
            self._settle(table, tokens.leave(table.token, connection.job))

    def _hang_up(self, connection: Connection) -> None:
        connection.is_open = False
        self._connections.discard(connection)
        self._forget(connection.sock.fileno())
        connection.sock.close()
        if connection.pid_fd is not None:
            self._forget(connection.pid_fd)
            os.close(connection.pid_fd)

    def _forget(self, fd: int) -> None:
        self._epoll.unregister(fd)
        del self._reactions[fd]

    def _deadline_s(self, limit_s: float) -> float:
        """A moment `limit_s` from now, at which the loop will look."""
        deadline_s = time.monotonic() + limit_s
        self._alarm_s = min(self._alarm_s, deadline_s)
        return deadline_s

    def _patience_s(self) -> float | None:
        return None if self._alarm_s == inf else max(0.0, self._alarm_s - time.monotonic())

    def _expire(self, now_s: float) -> None:
        if now_s < self._alarm_s:
            return
        for connection in tuple(self._connections):
            if connection.is_open and connection.deadline_s <= now_s:
                self._lose_patience(connection)
        for table in self._tables.values():
            if table.gather_deadline_s <= now_s:
                self._give_up_on_absent(table)
            if table.wake_s <= now_s:
                self._settle(table, table.token)
        ends_s = [connection.deadline_s for connection in self._connections]
        wakes_s = [min(table.gather_deadline_s, table.wake_s) for table in self._tables.values()]
        self._alarm_s = min([*ends_s, *wakes_s], default=inf)

    def _lose_patience(self, connection: Connection) -> None:
        if connection.table is not None:
            _report(f"lease of job {connection.job!r} withdrawn after {self._settings.lease_limit_s} s")
            self._end_lease(connection, connection.table, connection.generation)
        else:
            self._drop(connection)

    def _give_up_on_absent(self, table: Table) -> None:
        table.gather_deadline_s = inf
        token = table.token
        for job in token.absent:
            _report(f"job {job!r} did not come to {table.name} in {self._settings.gather_limit_s} s")
            token = tokens.leave(token, job)
        self._settle(table, token)


def _pid_fd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None for one in another PID namespace."""
    with suppress(ProcessLookupError):  # gone already; its socket says so too
        return os.pidfd_open(pid) if pid > 0 else None
    return None


def _report(event: str) -> None:
    print(f"crossover: {event}", file=sys.stderr, flush=True)
