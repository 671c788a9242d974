"""The way to an arbiter: a line to its socket, and questions."""

import os
import select
import socket
from contextlib import suppress
from typing import Self

from crossover.arbiter.listening import limit_connect
from crossover.errors import ArbiterAbsent, ArbiterLost, LeaseLost, Refused
from crossover.protocol import (
    HEADER_BYTES,
    REPLY_BYTES,
    REPORT_BYTES,
    Reply,
    ReplyKind,
    Request,
    RequestKind,
    peer,
)

_GOODBYE_LIMIT_S = 1.0
_CONNECT_LIMIT_S = 2.0  # only a server that accepts nobody lets one wait


class HungUp(ArbiterLost):
    """The line has ended: the arbiter is gone, or has put the job out."""


class Line:
    """One connection to the arbiter at `path`, for one thread. When its state is in doubt it is closed, and says
    `HungUp` from then on.

    Raises `ArbiterAbsent` where nobody serves `path`, `ArbiterLost` where a server accepts nobody, and `Refused` where
    another user serves it.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = _connect(path)

    def exchange(self, packet: bytes, expected: ReplyKind, limit_s: float | None = None) -> bytes:
        """Send a packet and return the one that answers it.

        Raises `ArbiterLost` after `limit_s`, `LeaseLost` where a release came too late, and `Refused` with the
        arbiter's reason.
        """
        try:
            return self._answered(packet, expected, limit_s)
        # the line is in order: the arbiter has answered
        except LeaseLost:
            raise
        except BaseException:
            self.close()
            raise

    def say_goodbye(self) -> bool:
        """Leave, and wait until the arbiter has noted it; False when it died before. Then the line is closed."""
        with self._socket:
            try:
                self._socket.shutdown(socket.SHUT_WR)
                while _is_readable(self._socket, _GOODBYE_LIMIT_S):
                    packet = self._socket.recv(REPLY_BYTES)
                    if not packet or packet[4] == ReplyKind.LEFT:  # else it was on its way already
                        return bool(packet)
            except OSError:
                return False
        return True  # it lives, and will see the end of the stream when it comes to it

    def drop(self) -> None:
        """Close this process's copy alone: the process that forked it keeps the seat."""
        self._socket.close()

    def close(self) -> None:
        """Leave without a word. Closing alone would wait for copies that forked children hold."""
        with self._socket:
            if self._socket.fileno() >= 0:
                _shut(self._socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answered(self, packet: bytes, expected: ReplyKind, limit_s: float | None) -> bytes:
        try:
            self._socket.send(packet)
            # without a limit the call sleeps in recv, one system call less on the path of a turn
            if limit_s is not None and not _is_readable(self._socket, limit_s):
                raise TimeoutError
            answer = self._socket.recv(REPORT_BYTES if expected is ReplyKind.REPORT else REPLY_BYTES)
        except TimeoutError as error:
            raise ArbiterLost(
                f"no answer in {limit_s} s from {self._path}: probably a deadlock, or a job that holds or delays its "
                "turn: give every host the same job order, release before waiting for messages, or raise the limit"
            ) from error
        except OSError:
            answer = self._last_word()
        if not answer:
            raise HungUp(f"the arbiter at {self._path} went away: start it again and join anew, or give settings")
        # byte 4 is the kind: a reply in order is told without unpacking it
        if len(answer) < HEADER_BYTES or answer[4] != expected:
            reply = Reply.unpack(answer)
            if reply.kind is ReplyKind.FENCED:
                raise LeaseLost(reply.text)
            raise Refused(reply.text or f"the arbiter answered {reply.kind.name}, not {expected.name}: use one version")
        return answer

    def _last_word(self) -> bytes:
        """What came before the arbiter hung up, such as its reason: the kernel reports the end first."""
        with suppress(OSError):
            return self._socket.recv(REPLY_BYTES, socket.MSG_DONTWAIT)
        return b""


class NoLine:
    """In place of a `Line` where a job goes on without turns: answers at once, as an arbiter of this job alone would.

    Its leases have generation 0, which no arbiter gives.
    """

    def __init__(self, round_: int) -> None:
        self._round = round_

    def exchange(self, packet: bytes, expected: ReplyKind, limit_s: float | None = None) -> bytes:
        """The answer to a packet."""
        request, round_ = Request.unpack(packet), self._round
        if request.kind is RequestKind.ACQUIRE:
            self._round += 1
        elif request.kind is RequestKind.SKIP:
            round_ = self._round = round_ + request.number
        return Reply(expected, round=round_).pack()

    def say_goodbye(self) -> bool:
        """No other job waits for it."""
        return True

    def close(self) -> None:
        """Nothing is open."""


def ask_once(path: str | os.PathLike[str], request: Request, expected: ReplyKind, *, limit_s: float) -> Reply:
    """One question on a line of its own; errors as of `Line` and its `exchange`."""
    with Line(os.fspath(path)) as line:
        return Reply.unpack(line.exchange(request.pack(), expected, limit_s))


def _connect(path: str) -> socket.socket:
    sock = None
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        limit_connect(sock, _CONNECT_LIMIT_S)
        sock.connect(path)
        limit_connect(sock, 0)
        _, uid = peer(sock)
        if uid != os.geteuid():
            raise Refused(f"the arbiter at {path} belongs to user {uid}: start one of your own")
    except BlockingIOError as error:
        _close(sock)
        raise ArbiterLost(
            f"the arbiter at {path} accepts nobody: is it stopped? Continue it with `kill -CONT`, or end it"
        ) from error
    except OSError as error:
        _close(sock)
        raise ArbiterAbsent(
            f"no arbiter serves {path!r} ({error.strerror or error}): start one with "
            f"`python -m crossover.arbiter {path} …`, give the participant settings, or correct the path"
        ) from error
    except Refused:
        _close(sock)
        raise
    return sock


def _close(sock: socket.socket | None) -> None:
    if sock is not None:
        sock.close()


def _is_readable(sock: socket.socket, limit_s: float) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(1e3 * limit_s))


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # the arbiter hung up first
        return
