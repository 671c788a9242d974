"""The arbiter's door: who may come in, and answers for visitors who have no seat.

A visitor is anybody who has connected and not joined. There is room for MAX_VISITORS, and one more sends the oldest
away, so a flood of visitors ends itself and keeps no job from its seat. They are served one at a time between turns.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Protocol

from crossover.arbiter.event_loop import Loop
from crossover.errors import CrossoverError, Refused
from crossover.protocol import REQUEST_BYTES, Answer, Ask, Reply, Request, peer

MAX_VISITORS = 64
HELLO_LIMIT_S = 5.0


class House(Protocol):
    """What lies behind the door. Each may raise `CrossoverError`, which the visitor is told."""

    def seat(self, sock: socket.socket, pid: int, request: Request) -> None:
        """Take the connection over; it is the visitor's no more."""

    def report(self) -> bytes:
        """The packet that answers STATUS."""

    def entry(self, request: Request) -> bytes:
        """The packet that answers LOOK."""


@dataclass(slots=True, eq=False)
class Visitor:
    """Somebody who has not joined; `deadline_s` is when patience with him ends."""

    sock: socket.socket
    pid: int
    deadline_s: float


class Door:
    """Accepts connections from `listener` and answers them until they join."""

    def __init__(self, listener: socket.socket, loop: Loop, house: House) -> None:
        self._listener = listener
        self._loop = loop
        self._house = house
        self._visitors: dict[int, Visitor] = {}  # by descriptor, oldest first
        self._answers: dict[Ask, Callable[[Visitor, Request], None]] = {
            Ask.JOIN: self._let_in,
            Ask.STATUS: lambda visitor, _: self._tell(visitor, self._house.report()),
            Ask.LOOK: lambda visitor, request: self._tell(visitor, self._house.entry(request)),
        }
        loop.watch(listener.fileno(), self._accept, urgent=False)

    @property
    def next_deadline_s(self) -> float:
        """When patience with a visitor ends next; not later than it does, and infinity without any."""
        return min((visitor.deadline_s for visitor in self._visitors.values()), default=inf)

    def expire(self, now_s: float) -> None:
        """Send those away who have not said what they want."""
        for visitor in tuple(self._visitors.values()):
            if visitor.deadline_s <= now_s:
                self._send_away(visitor)

    def close(self) -> None:
        """Nobody comes in any more."""
        for visitor in tuple(self._visitors.values()):
            self._send_away(visitor)
        self._loop.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        sock.setblocking(False)
        pid, uid = peer(sock)
        if uid != os.geteuid():
            refuse(sock, f"this arbiter serves user {os.geteuid()} and not user {uid}: start one of your own")
            return
        if len(self._visitors) >= MAX_VISITORS:
            self._send_away(next(iter(self._visitors.values())))
        visitor = self._visitors[sock.fileno()] = Visitor(sock, pid, time.monotonic() + HELLO_LIMIT_S)
        self._loop.watch(sock.fileno(), partial(self._read, visitor), urgent=False)
        self._loop.wake_by(visitor.deadline_s)

    def _read(self, visitor: Visitor) -> None:
        try:
            packet = visitor.sock.recv(REQUEST_BYTES + 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""  # a reset is an end like any other
        if not packet:
            self._send_away(visitor)
            return
        try:
            self._answer(visitor, Request.unpack(packet))
        except CrossoverError as error:
            self._send_away(visitor, str(error))

    def _answer(self, visitor: Visitor, request: Request) -> None:
        if request.kind not in self._answers:
            raise Refused("the first packet must be JOIN: use crossover.Participant")
        self._answers[request.kind](visitor, request)

    def _let_in(self, visitor: Visitor, request: Request) -> None:
        fd = visitor.sock.fileno()
        self._loop.forget(fd)
        try:
            self._house.seat(visitor.sock, visitor.pid, request)
        except CrossoverError:
            self._loop.watch(fd, partial(self._read, visitor), urgent=False)
            raise
        del self._visitors[fd]

    def _tell(self, visitor: Visitor, packet: bytes) -> None:
        visitor.deadline_s = time.monotonic() + HELLO_LIMIT_S
        try:
            visitor.sock.send(packet)
        except OSError:  # gone, or it asks and never reads
            self._send_away(visitor)

    def _send_away(self, visitor: Visitor, reason: str = "") -> None:
        fd = visitor.sock.fileno()
        del self._visitors[fd]
        self._loop.forget(fd)
        refuse(visitor.sock, reason)


def refuse(sock: socket.socket, reason: str = "") -> None:
    """Hang up, and say why where there is a reason."""
    with sock, suppress(OSError):  # it may have hung up before it was told
        if reason:
            sock.send(Reply(Answer.REFUSED, text=reason).pack())
