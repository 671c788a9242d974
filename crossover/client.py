"""A job's side: take a turn on a device, give it back, leave.

    with Participant(socket_path, job="resnet50") as job:
        for batch in loader:
            wait_for_own_messages()     # outside the turn: neither link nor loader may hold it
            with job.turn():
                apply_previous_update(); forward(batch); backward(); wait_until_device_is_idle()
            # the messages travel while the others have their turns

The lease is released before anything is waited for, so jobs cannot wait for each other in a circle.
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from crossover.arbiter.listening import locked_folder
from crossover.arbiter.roster import RosterFile
from crossover.connecting import HungUp, Line, NoLine
from crossover.errors import ArbiterAbsent, ArbiterLost, CrossoverError, LeaseLost, Refused, Unavailable
from crossover.forking import separate_at_fork
from crossover.policies import Extent
from crossover.process import ensure
from crossover.protocol import (
    REPLY_HEADER,
    Reply,
    ReplyKind,
    Request,
    RequestKind,
    Resource,
    check_device,
    check_job,
    release_of,
)
from crossover.settings import Settings
from crossover.status import excuse
from crossover.tokens import MAX_AHEAD_ROUNDS
from crossover.turns import Alone, Lease, TurnTaking

__all__ = ["Alone", "Lease", "Participant", "TurnTaking"]

T = TypeVar("T")
_log = logging.getLogger("crossover")
_ACQUIRE = Request(RequestKind.ACQUIRE).pack()
_ASIDE = Request(RequestKind.ASIDE).pack()
_PAUSE = Request(RequestKind.PAUSE).pack()
_ANSWER_LIMIT_S = 5.0  # for answers that no turn has to end for
_NUM_TRIES = 20  # arbiters that may die one after the other while a job comes in


class Participant(TurnTaking):
    """One job's seat at one token of this host's arbiter; not thread-safe: a thread that takes link turns has its own.

    Joins when it is made, and belongs to the process that made it: in a forked child every turn is granted at once, and
    the arbiter does not know of it. Where a job has several workers they must enter at
    the same round: `agree(number)` returns the largest number that a worker gave, and may talk to the other workers.
    It is called twice at the beginning and twice per `resume`: first so that all workers are there before one of them
    has a seat that others wait for, then with the round at which this host has let the job in.

    With `settings` an arbiter is started where none serves `socket_path`, and replaced when it dies: the job then comes
    back to its seat at its own next round. A turn that was granted by the dead arbiter ends as any other, and nobody
    overtakes it (`crossover.arbiter.roster`). Where a wait was broken off (Ctrl-C, `wait_limit_s`) the seat is free at
    once, and the next request takes it again, at the latest round that is due on this host. Without settings,
    `ArbiterAbsent` and `ArbiterLost` say that there is no arbiter, or no line to it any more.

    `num_local` is the job's number of workers on this host, each at a device of its own: once all have come, nobody
    waits for the job at the host's other devices. Without it they wait for as long as the settings' `gather_limit_s`.

    With `wait_limit_s` a longer wait for a turn ends in `ArbiterLost`. Raises `Refused` with the arbiter's reason.

    With `keeps_going` turns end no job: where the machine allows no arbiter (a full disk), or the seat is lost for any
    reason later, one warning is logged and every turn is granted at once from then on, with a lease of generation 0.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        job: str,
        device: str = "0",
        *,
        resource: Resource = Resource.DEVICE,
        agree: Callable[[int], int] | None = None,
        settings: Settings | None = None,
        wait_limit_s: float | None = None,
        num_local: int | None = None,
        keeps_going: bool = False,
    ) -> None:
        self.job = check_job(job)
        self._path = os.fspath(socket_path)
        self._device = check_device(device)
        self._resource = resource
        self._settings = settings
        self._wait_limit_s = wait_limit_s
        self._num_local = num_local
        # kept here as well as in the arbiter: a second acquire is refused without asking
        self._lease: Lease | None = None
        self._line: Line | NoLine | None = None
        self._keeps_going = keeps_going
        self._release = b""  # the packet that ends the lease
        self._extent = Extent.BACKWARD
        self._generation = 0  # of the youngest lease that this job knows of
        self._agree = agree
        self._is_paused = False
        self.next_round = 0
        separate_at_fork(self)
        self._meet()
        try:
            self._served(self._join)
        except (Unavailable, OSError) as error:
            self._go_without(error)
        try:
            self._enter_together()
        except BaseException:
            self.leave()
            raise

    @property
    def extent(self) -> Extent:
        """What the arbiter's sharing asks for."""
        return self._extent

    def acquire(self, *, aside: bool = False) -> Lease:
        """Block until the arbiter grants the turn (sleeping in the kernel, without the interpreter lock)."""
        if self._lease is not None:
            raise Refused(f"job {self.job!r} has lease {self._lease.generation} already: release it first")
        if not aside:
            self._is_paused = False  # the request brings it back, if `resume` has not
        asked_s = time.monotonic()
        granted = self._ask(_ASIDE if aside else _ACQUIRE, ReplyKind.GRANTED)
        _, _, _, generation, round_ = REPLY_HEADER.unpack_from(granted)
        lease = self._lease = Lease(generation, round_, time.monotonic() - asked_s)
        # packed while nobody waits, not at the release
        self._release = release_of(generation)
        self._generation = generation
        self.next_round = round_ if aside else round_ + 1
        return lease

    def release(self, lease: Lease) -> None:
        """Give the lease back; `LeaseLost` when it had been withdrawn, after which new turns may be taken."""
        line = self._seated()
        if lease is not self._lease and lease != self._lease:
            raise LeaseLost(
                f"job {self.job!r} does not have lease {lease.generation} any more: release each lease once"
            )
        # whatever the answer is, the lease has ended for this job
        self._lease = None
        try:
            line.exchange(self._release, ReplyKind.RELEASED, self._wait_limit_s)
        except HungUp:
            self._renew()
        except (Refused, ArbiterLost) as error:
            self._go_without(error)

    def skip(self, num_rounds: int) -> None:
        """Give up turns, for example for an evaluation on all workers; only between turns."""
        told = self._ask(Request(RequestKind.SKIP, number=num_rounds).pack(), ReplyKind.SKIPPED)
        self.next_round = Reply.unpack(told).round

    def pause(self) -> None:
        """Leave the queue between turns; may be called again."""
        self._is_paused = True
        self._ask(_PAUSE, ReplyKind.PAUSED)

    def resume(self) -> None:
        """Come back at the latest round that is due on one of the workers' hosts; a sole worker at once. Without a
        pause, nothing. Talks to the other workers: call it on all of them."""
        if not self._is_paused:
            return
        self._is_paused = False
        if self._agree is None:
            return  # its next request brings it back
        self._meet()
        self.skip(1)  # takes a place in the queue, where the others have got to
        self._enter_together()

    def leave(self) -> None:
        """Free the seat at once, and with it a lease that is still held."""
        self._lease = None
        line, self._line = self._line, None
        if line is None:
            return
        # without settings no arbiter is ever replaced, so none has to know more
        if self._settings is None:
            line.close()
        elif not line.say_goodbye():
            self._strike()

    def become_childs(self) -> None:
        """In a forked child: the seat stays with the parent, and so does the word with the job's other workers."""
        if isinstance(self._line, Line):
            self._line.drop()
            self._line = NoLine(self.next_round)
        self._agree = self._settings = None

    def _meet(self) -> None:
        """Wait for the job's other workers: nobody is to wait for a job that is not complete."""
        if self._agree is not None:
            self._agree(0)

    def _enter_together(self) -> None:
        """Go on to the latest round at which a host has let the job in.

        Once it has a place in every host's queue nobody gets past it, so that from here the order is one on all hosts.
        """
        if self._agree is not None:
            entry = self._agree(self.next_round)
            while entry > self.next_round:
                self.skip(min(entry - self.next_round, MAX_AHEAD_ROUNDS))

    def _served(self, act: Callable[[], T]) -> T:
        """Do what needs an arbiter; where one may be started, again when it goes away meanwhile."""
        if self._settings is None:
            return act()
        for _ in range(_NUM_TRIES):
            ensure(self._path, self._settings)
            # it may die between the two calls: look for it again
            with suppress(ArbiterAbsent, HungUp):
                return act()
        ensure(self._path, self._settings)
        return act()

    def _join(self) -> None:
        self._line = Line(self._path)
        welcome = Reply.unpack(self._line.exchange(self._join_packet(), ReplyKind.WELCOME, self._wait_limit_s))
        self.next_round, self._extent = welcome.round, welcome.extent
        self._generation = max(self._generation, welcome.generation)
        if self._num_local is not None:
            excuse(self._path, self.job, num_workers=self._num_local, limit_s=_ANSWER_LIMIT_S)
        if self._is_paused:  # the arbiter that knew is gone
            self._line.exchange(_PAUSE, ReplyKind.PAUSED, self._wait_limit_s)

    def _join_packet(self) -> bytes:
        names = (self.job, self._device)
        return Request(RequestKind.JOIN, self._resource, self.next_round, *names, generation=self._generation).pack()

    def _seated(self) -> Line | NoLine:
        if self._line is None:
            raise ArbiterLost(f"job {self.job!r} has left the arbiter at {self._path}: make a new Participant")
        return self._line

    def _ask(self, packet: bytes, expected: ReplyKind) -> bytes:
        """The arbiter's answer, or that of the one which replaces it."""
        while True:
            try:
                return self._seated().exchange(packet, expected, self._wait_limit_s)
            except HungUp:
                self._renew()
            except (Refused, ArbiterLost) as error:
                self._go_without(error)

    def _renew(self) -> None:
        """The line has ended: take the seat again, where an arbiter may be started."""
        try:
            if self._settings is None:
                self._line = None
                raise ArbiterLost(
                    f"job {self.job!r} has no line to the arbiter at {self._path} any more: if it went away, start it "
                    "again; then make a new Participant, or give this one settings"
                )
            self._served(self._join)
        except (CrossoverError, OSError) as error:
            self._go_without(error)

    def _go_without(self, error: Exception) -> None:
        """Where the job keeps going, the error ends its turns and nothing else; elsewhere it is raised."""
        if not self._keeps_going:
            raise error
        if self._line is not None:
            self._line.close()
        # it still takes part in what the job's workers agree on: the others may have their seats
        self._line = NoLine(self.next_round)
        _log.warning("job %r goes on without turns: %s", self.job, error)

    def _strike(self) -> None:
        """Leave an arbiter that is dead, so that its replacement does not wait for this job."""
        path = Path(self._path).absolute()
        if not path.parent.is_dir():
            return
        # then it ends, is stopped, or is another job's; or there is no room, and the others wait for a while
        with suppress(Refused, OSError), locked_folder(path.parent) as folder:
            try:
                with Line(self._path) as line:
                    line.exchange(self._join_packet(), ReplyKind.WELCOME, _ANSWER_LIMIT_S)
                    line.say_goodbye()
            except ArbiterAbsent:
                RosterFile(folder, path.name).strike(self._resource, self._device, self.job)
