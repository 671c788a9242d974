"""A job's side: take a turn on a device, give it back, leave.

    with Participant(socket_path, job="resnet50") as job:
        for batch in loader:
            wait_for_own_messages()     # outside the turn: neither link nor loader may hold it
            with job.turn():
                apply_previous_update(); forward(batch); backward(); wait_until_device_is_idle()
            # the messages travel while the others have their turns

The lease is released before anything is waited for, so jobs cannot wait for each other in a circle.
"""

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from crossover.errors import ArbiterAbsent, ArbiterLost, LeaseLost, Refused
from crossover.policies import Extent
from crossover.protocol import REPLY_BYTES, Answer, Ask, Reply, Request, Resource, check_device, check_job, peer

_ACQUIRE = Request(Ask.ACQUIRE).pack()
_ASIDE = Request(Ask.ASIDE).pack()


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to use the resource until its release. `round` numbers the job's turns from 0."""

    generation: int
    round: int
    waited_s: float


class TurnTaking(ABC):
    """What a training loop needs of a scheduler, real or absent."""

    @property
    @abstractmethod
    def extent(self) -> Extent:
        """What the sharing wants a turn to last until."""

    @abstractmethod
    def acquire(self, *, aside: bool = False) -> Lease:
        """Wait for the job's turn. With `aside`, for a lease that is no turn: for what one worker does and the others
        do not, such as an evaluation; it moves no round."""

    @abstractmethod
    def release(self, lease: Lease) -> None:
        """End the turn. The device must be idle: an event that is complete, not a call that has returned."""

    @abstractmethod
    def skip(self, num_rounds: int) -> None:
        """Give up the job's next turns; all its workers must, at the same round."""

    @abstractmethod
    def leave(self) -> None:
        """Take no more turns, so that the others need not wait. May be called again."""

    @contextmanager
    def turn(self, *, aside: bool = False) -> Iterator[Lease]:
        """One turn as a `with` block; it is released whatever happens inside."""
        lease = self.acquire(aside=aside)
        try:
            yield lease
        finally:
            self.release(lease)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.leave()


class Alone(TurnTaking):
    """A job that shares with nobody: every turn is its own at once."""

    def __init__(self) -> None:
        self._turns = self._leases = 0

    @property
    def extent(self) -> Extent:
        """The usual one: nobody waits."""
        return Extent.BACKWARD

    def acquire(self, *, aside: bool = False) -> Lease:
        """A lease without a wait."""
        self._leases += 1
        self._turns += not aside
        return Lease(generation=self._leases, round=self._turns - (not aside), waited_s=0.0)

    def release(self, lease: Lease) -> None:
        """Nothing to give back."""

    def skip(self, num_rounds: int) -> None:
        """Rounds that nobody else counts."""
        self._turns += num_rounds

    def leave(self) -> None:
        """Nobody to tell."""


class Participant(TurnTaking):
    """One job's seat at one token of this host's arbiter; not thread-safe: a thread that takes link turns has its own.

    Joins when it is made, and belongs to the process that made it. `first_round` is the earliest round to enter at, for
    jobs that agreed on one among their hosts. With `wait_limit_s` a longer wait for an answer ends in `ArbiterLost`.
    Raises `ArbiterAbsent` where nobody serves `socket_path`, and `Refused` with the arbiter's reason.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        job: str,
        device: str = "0",
        *,
        resource: Resource = Resource.DEVICE,
        first_round: int = 0,
        wait_limit_s: float | None = None,
    ) -> None:
        if first_round < 0:
            raise Refused(f"first_round must be 0 or more, not {first_round}")
        self.job = check_job(job)
        self._path = os.fspath(socket_path)
        self._wait_limit_s = wait_limit_s
        self._lease: Lease | None = None
        join = Request(Ask.JOIN, resource, first_round, self.job, check_device(device))
        self._socket = _connect(self._path)
        self._socket.settimeout(wait_limit_s)
        welcome = self._exchange(join.pack(), Answer.WELCOME)
        self.next_round = welcome.round
        self._extent = welcome.extent

    @property
    def extent(self) -> Extent:
        """What the arbiter's sharing asks for."""
        return self._extent

    def acquire(self, *, aside: bool = False) -> Lease:
        """Block until the arbiter grants the turn (sleeping in the kernel, without the interpreter lock)."""
        if self._lease is not None:
            raise Refused(f"job {self.job!r} has lease {self._lease.generation} already: release it first")
        asked_s = time.monotonic()
        granted = self._exchange(_ASIDE if aside else _ACQUIRE, Answer.GRANTED)
        self._lease = Lease(granted.generation, granted.round, time.monotonic() - asked_s)
        self.next_round = granted.round + (not aside)
        return self._lease

    def release(self, lease: Lease) -> None:
        """Give the lease back; `LeaseLost` when it had been withdrawn, after which new turns may be taken."""
        if lease == self._lease:
            self._lease = None
        self._exchange(Request(Ask.RELEASE, number=lease.generation).pack(), Answer.RELEASED)

    def skip(self, num_rounds: int) -> None:
        """Give up turns, for example for an evaluation on all workers; only between turns."""
        self.next_round = self._exchange(Request(Ask.SKIP, number=num_rounds).pack(), Answer.SKIPPED).round

    def leave(self) -> None:
        """Free the seat at once, and with it a lease that is still held."""
        self._lease = None
        if self._socket.fileno() < 0:
            return
        with self._socket, suppress(OSError):  # the arbiter may have hung up first
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone would wait for copies that forked children hold

    def _exchange(self, packet: bytes, expected: Answer) -> Reply:
        """One packet each way. A connection whose state is in doubt is not used again."""
        try:
            reply = self._ask(packet)
        except BaseException:
            self.leave()
            raise
        if reply.kind is Answer.FENCED:
            raise LeaseLost(reply.text)
        if reply.kind is not expected:
            self.leave()
            raise Refused(reply.text or f"the arbiter answered {reply.kind.name}, not {expected.name}: use one version")
        return reply

    def _ask(self, packet: bytes) -> Reply:
        if self._socket.fileno() < 0:
            raise ArbiterLost(f"job {self.job!r} has left the arbiter at {self._path}: make a new Participant")
        try:
            self._socket.send(packet)
            answer = self._socket.recv(REPLY_BYTES + 1)
        except TimeoutError as error:
            raise ArbiterLost(
                f"job {self.job!r} got no turn in {self._wait_limit_s} s from {self._path}: look for a job that "
                "holds or delays its turn, or raise wait_limit_s"
            ) from error
        except OSError as error:
            raise self._lost() from error
        if not answer:
            raise self._lost()
        return Reply.unpack(answer)

    def _lost(self) -> ArbiterLost:
        return ArbiterLost(f"the arbiter at {self._path} went away from job {self.job!r}: start it again and join anew")


def _connect(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(path)
        _, uid = peer(sock)
        if uid != os.geteuid():
            raise Refused(f"the arbiter at {path} belongs to user {uid}: start one of your own")
    except OSError as error:
        sock.close()
        raise ArbiterAbsent(
            f"no arbiter serves {path!r} ({error.strerror or error}): start one with "
            f"`python -m crossover.arbiter {path} --jobs …`, or correct the path"
        ) from error
    except Refused:
        sock.close()
        raise
    return sock
