"""Accepts connections, and answers those that have no seat.

A pending client is whoever has connected and not joined. There is room for MAX_PENDING of them, and one more
disconnects the oldest, so a flood of connections ends itself and keeps no job from its seat. Pending clients are served
one at a time between turns.
"""

import errno
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol

from crossover.arbiter.event_loop import Loop
from crossover.errors import CrossoverError, Refused
from crossover.protocol import REQUEST_BYTES, Reply, ReplyKind, Request, RequestKind, peer

MAX_PENDING = 64
HELLO_LIMIT_S = 5.0
PAUSE_S = 0.2


class Admissions(Protocol):
    """What the acceptor asks of the arbiter. Each may raise `CrossoverError`, which the client is told."""

    def seat(self, sock: socket.socket, pid: int, request: Request) -> None:
        """Take the connection over: it has joined, and is the acceptor's no more."""

    def report(self) -> bytes:
        """The packet that answers STATUS."""

    def excuse(self, job: str, num_workers: int) -> bytes:
        """The packet that answers EXCUSE: nobody waits any more for more than `num_workers` of the job's workers."""


@dataclass(slots=True, eq=False)
class PendingClient:
    """A connection that has not joined; it is closed at `deadline_s` (monotonic) unless it asks something."""

    sock: socket.socket
    pid: int
    deadline_s: float


class Acceptor:
    """Accepts connections from `listener` and answers them until they join."""

    def __init__(self, listener: socket.socket, loop: Loop, admissions: Admissions) -> None:
        self._listener = listener
        self._loop = loop
        self._admissions = admissions
        self._pending: dict[int, PendingClient] = {}  # by descriptor, oldest first
        self._resume_s = inf  # when to accept again, after there was no descriptor left
        self._answers: dict[RequestKind, Callable[[PendingClient, Request], None]] = {
            RequestKind.JOIN: self._admit,
            RequestKind.STATUS: lambda client, _: self._tell(client, admissions.report()),
            RequestKind.EXCUSE: lambda client, request: self._tell(
                client, admissions.excuse(request.job, request.number)
            ),
        }
        loop.watch(listener.fileno(), self._accept, urgent=False)

    @property
    def next_deadline_s(self) -> float:
        """When `expire` has something to do; infinity for never."""
        return min([self._resume_s, *(client.deadline_s for client in self._pending.values())])

    def expire(self, now_s: float) -> None:
        """Disconnect those who have not said what they want, and accept again after a pause."""
        if self._resume_s <= now_s:
            self._resume_s = inf
            self._loop.watch(self._listener.fileno(), self._accept, urgent=False)
        for client in tuple(self._pending.values()):
            if client.deadline_s <= now_s:
                self._disconnect(client)

    def close(self) -> None:
        """Accept nobody any more."""
        for client in tuple(self._pending.values()):
            self._disconnect(client)
        if self._resume_s == inf:
            self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause(error)
            return
        # one client that never reads must not hold the loop
        sock.setblocking(False)
        pid, uid = peer(sock)
        if uid != os.geteuid():
            refuse(sock, f"this arbiter serves user {os.geteuid()} and not user {uid}: start one of your own")
            return
        # the oldest has had the most time to say what it wants
        if len(self._pending) >= MAX_PENDING:
            self._disconnect(next(iter(self._pending.values())))
        client = self._pending[sock.fileno()] = PendingClient(sock, pid, time.monotonic() + HELLO_LIMIT_S)
        self._loop.watch(sock.fileno(), partial(self._read, client), urgent=False)
        self._loop.wake_by(client.deadline_s)

    def _pause(self, error: OSError) -> None:
        """Out of descriptors: leave the connection in the kernel's queue for a moment. Watched meanwhile it would wake
        the loop again and again."""
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise error
        with suppress(OSError):  # no room in the log either
            print(f"crossover: no connection can be accepted now: {error.strerror}", file=sys.stderr, flush=True)
        self._loop.forget(self._listener.fileno())
        self._resume_s = time.monotonic() + PAUSE_S
        self._loop.wake_by(self._resume_s)

    def _read(self, client: PendingClient) -> None:
        try:
            packet = client.sock.recv(REQUEST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""  # a reset is an end like any other
        if not packet:
            self._disconnect(client)
            return
        try:
            self._answer(client, Request.unpack(packet))
        except CrossoverError as error:
            self._disconnect(client, str(error))

    def _answer(self, client: PendingClient, request: Request) -> None:
        if request.kind not in self._answers:
            raise Refused("the first packet must be JOIN: use crossover.Participant")
        self._answers[request.kind](client, request)

    def _admit(self, client: PendingClient, request: Request) -> None:
        # the seat watches the same descriptor, as an urgent one; whatever comes of it, the client is pending no more
        self._let_go(client)
        try:
            self._admissions.seat(client.sock, client.pid, request)
        except (CrossoverError, OSError) as error:  # OSError: no descriptor or memory for one seat more
            refuse(client.sock, str(error))

    def _tell(self, client: PendingClient, packet: bytes) -> None:
        client.deadline_s = time.monotonic() + HELLO_LIMIT_S
        try:
            client.sock.send(packet)
        except OSError:  # gone, or it asks and never reads
            self._disconnect(client)

    def _disconnect(self, client: PendingClient, reason: str = "") -> None:
        self._let_go(client)
        refuse(client.sock, reason)

    def _let_go(self, client: PendingClient) -> None:
        fd = client.sock.fileno()
        del self._pending[fd]
        self._loop.forget(fd)


def refuse(sock: socket.socket, reason: str = "") -> None:
    """Hang up, and say why where there is a reason."""
    with sock, suppress(OSError):  # it may have hung up before it was told
        if reason:
            sock.send(Reply(ReplyKind.REFUSED, text=reason).pack())
