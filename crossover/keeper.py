"""A process's turns: when one begins, rests, goes on and ends.

    begin():  wait for own messages (no lease) → acquire → run the deferred calls in order
    rest():   the update is done and the next forward is still to come; the turn is held
    end():    device idle → release            (`Extent.MESSAGES`: own messages too, before the release)

A turn that rests longer than `rest_limit_s` is interrupted: the lease goes back, and the turn's rest is later done
under a lease aside, which moves no round. So a pause between update and forward (evaluation, checkpoint, slow loader)
does not hold the device, and every host still counts one turn per step, in the same order. Another job gets one turn
out of that; then the order lets nobody pass. The only worker of a job also leaves the queue meanwhile, since no other
host has to follow; the workers of a larger job do so together, in `paused`.

A keeper knows no framework: the integrations call it where their framework computes. One thread computes; others may
call it at the same time, for example to read a model's state.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto

from crossover.client import Lease, TurnTaking
from crossover.errors import LeaseLost
from crossover.forking import separate_at_fork
from crossover.policies import Extent
from crossover.watching import RestWatch

NUM_SPANS_KEPT = 4096

_log = logging.getLogger("crossover")


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """One turn: when it was asked for (monotonic clock), how long it was waited for and how long it was held, until it
    ended or was interrupted."""

    asked_s: float
    waited_s: float
    held_s: float


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """Sums since the beginning. `num_turns` counts those that an arbiter gave, `num_lost` leases that it withdrew
    before their release, `num_interrupted` turns that were given back while they rested. Leases aside count in
    `waited_s` and `held_s`, not in `num_turns`."""

    num_turns: int = 0
    waited_s: float = 0.0
    held_s: float = 0.0
    num_lost: int = 0
    num_interrupted: int = 0


class _Purpose(Enum):
    """What a lease is for."""

    TURN = auto()
    REST = auto()  # the rest of a turn that was interrupted, under a lease aside
    ASIDE = auto()


@dataclass(frozen=True, slots=True)
class _Held:
    lease: Lease
    purpose: _Purpose
    asked_s: float
    began_s: float


class TurnKeeper:
    """One job's turns in one process.

    `wait` returns when the job's own messages are complete and never runs under a lease, except at the end of a turn
    that lasts until then. `idle` returns when the device has done what it was given (or at once, where a release may
    come before); it is called by the thread that ends the turn. `rest_limit_s` is how long a turn may rest; with None
    it is held for as long as it rests, which NCCL needs, since there no other job's collectives may come in between.
    `is_sole` says that this is the job's only worker.
    """

    def __init__(
        self,
        turns: TurnTaking,
        wait: Callable[[], None],
        idle: Callable[[], None],
        rest_limit_s: float | None = None,
        *,
        is_sole: bool = False,
    ) -> None:
        self._turns, self._wait, self._idle = turns, wait, idle
        # One lock around every change. It is held while a lease is waited for, so that a second thread's request queues
        # up behind the first one's instead of reaching the arbiter in the middle of it.
        self._lock = threading.RLock()
        self._held: _Held | None = None
        self._is_resting = False
        self._is_interrupted = False
        self._deferred: deque[Callable[[], object]] = deque()
        self._is_running_deferred = False
        self._is_sole = is_sole
        self._statistics = TurnStatistics()
        self._spans: deque[TurnSpan] = deque(maxlen=NUM_SPANS_KEPT)
        self._watch = None if rest_limit_s is None else RestWatch(rest_limit_s, self._interrupt_late)
        separate_at_fork(self)

    @property
    def extent(self) -> Extent:
        """What the sharing wants a turn to last until. Whoever calls `end` chooses the place accordingly."""
        return self._turns.extent

    @property
    def in_turn(self) -> bool:
        """Whether this process has a lease now, aside or not."""
        return self._held is not None

    @property
    def is_deferring(self) -> bool:
        """Whether a call waits for the next turn."""
        return bool(self._deferred)

    @property
    def statistics(self) -> TurnStatistics:
        """What the turns came to so far."""
        return self._statistics

    @property
    def spans(self) -> tuple[TurnSpan, ...]:
        """The latest turns, at most `NUM_SPANS_KEPT`, oldest first; no leases aside."""
        return tuple(self._spans)

    def begin(self) -> None:
        """Start a turn, or go on with one that rests or was interrupted, and run what was deferred. Under a lease, only
        what was deferred."""
        with self._lock:
            self._wake()
            if self._held is None:
                self._enter(_Purpose.REST if self._is_interrupted else _Purpose.TURN)
            else:
                self._run_deferred()

    def rest(self) -> None:
        """The turn has more to come, but nothing runs now; nothing outside a turn, or under a lease aside."""
        with self._lock:
            if self._held is not None and self._held.purpose is not _Purpose.ASIDE:
                self._is_resting = True
                if self._watch is not None:
                    self._watch.arm()

    def end(self) -> None:
        """Give the turn back once the device is idle; nothing outside a turn, or under a lease aside."""
        with self._lock:
            if self._held is not None and self._held.purpose is not _Purpose.ASIDE:
                self._is_interrupted = False
                self._finish()

    def interrupt(self) -> None:
        """Give the lease back in the middle of a turn, which the next `begin` goes on with under a lease aside.

        Nothing outside a turn, under a lease aside, and where turns last until the messages have arrived.
        """
        with self._lock:
            if self._held is None or self._held.purpose is _Purpose.ASIDE or self.extent is Extent.MESSAGES:
                return
            self._is_interrupted = True
            self._statistics = replace(self._statistics, num_interrupted=self._statistics.num_interrupted + 1)
            self._finish()

    def defer(self, call: Callable[[], object]) -> None:
        """Run `call` at the beginning of the next lease, after what was deferred before."""
        self._deferred.append(call)

    def flush(self) -> None:
        """Run what was deferred now: under a lease aside, or in the turn that lasts. Nothing deferred, nothing done."""
        with self._lock:  # also around the question: another thread may be running them, or closing
            if self._deferred:
                with self.aside():
                    pass

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A lease that is no turn, for what one worker does and others do not; what was deferred runs first.

        Under a lease, only that; but a turn that rests is interrupted first, so that an evaluation of many batches
        between an update and the next forward lets the others in between its batches.
        """
        with self._lock:
            if self._is_resting and self._watch is not None:
                self._break_rest()
            is_inside = self._held is not None
            was_resting = self._is_resting
            self._wake()
            if is_inside:
                self._run_deferred()
            else:
                self._enter(_Purpose.ASIDE)
        try:
            yield
        finally:
            with self._lock:
                if is_inside and was_resting:
                    self.rest()
                elif not is_inside and self.in_turn:  # it may have been closed inside
                    self._finish()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Out of the queue for the length of the block, on all of the job's workers at the same place of their scripts:
        a lease that lasts ends here, and the workers agree on the round at which they come back.

        When the block raises, nothing is agreed on, because other workers may not have come so far.
        """
        with self._lock:
            self.flush()
            if self._held is not None:
                self._finish()
            self._is_interrupted = False
            self._turns.pause()
        yield
        with self._lock:
            self._turns.resume()

    def close(self) -> None:
        """Run what was deferred, give back a lease, leave. May be called again."""
        with self._lock:
            try:
                self.flush()
                if self._held is not None:
                    self._finish()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Leave at once, and forget what was deferred: after a failure the messages may never be complete."""
        self._deferred.clear()
        self._held = None
        if self._watch is not None:
            self._watch.stop()
        self._turns.leave()

    def become_childs(self) -> None:
        """In a forked child: there is nothing to wait for, and no thread but this one."""
        self._lock, self._watch = threading.RLock(), None
        self._wait = self._idle = _nothing

    def _wake(self) -> None:
        if self._is_resting:
            self._is_resting = False
            if self._watch is not None:
                self._watch.disarm()

    def _interrupt_late(self) -> None:
        """From the watch's thread."""
        with self._lock:
            if self._is_resting and self._watch is not None and self._watch.is_due:
                self._break_rest()

    def _break_rest(self) -> None:
        self.interrupt()
        if self._is_sole and not self.in_turn:
            self._turns.pause()

    def _enter(self, purpose: _Purpose) -> None:
        asked_s = time.monotonic()
        self._wait()
        lease = self._turns.acquire(aside=purpose is not _Purpose.TURN)
        self._held = _Held(lease, purpose, asked_s, time.monotonic())
        try:
            self._run_deferred()
        except BaseException:
            self._finish()
            raise

    def _run_deferred(self) -> None:
        if self._is_running_deferred:  # a deferred call reads what a flush should come before: it is in order already
            return
        self._is_running_deferred = True
        try:
            while self._deferred:
                self._deferred.popleft()()
        finally:
            self._is_running_deferred = False

    def _finish(self) -> None:
        self._wake()
        # Taken first: `idle` may run the garbage collector, and with it the end of a graph that calls `end` again.
        held, self._held = self._held, None
        assert held is not None
        try:
            self._idle()
            if self.extent is Extent.MESSAGES and held.purpose is not _Purpose.ASIDE:
                self._wait()
        finally:
            self._give_back(held)

    def _give_back(self, held: _Held) -> None:
        held_s = time.monotonic() - held.began_s
        try:
            self._turns.release(held.lease)
        except LeaseLost as error:
            # the turn is over all the same, and the job's results are right: only the device was shared for a while
            _log.warning("a turn ended without its lease: %s", error)
            self._statistics = replace(self._statistics, num_lost=self._statistics.num_lost + 1)
        is_turn = held.purpose is _Purpose.TURN and held.lease.generation > 0  # 0: out of turn
        if is_turn:
            self._spans.append(TurnSpan(held.asked_s, held.lease.waited_s, held_s))
        sums = self._statistics
        self._statistics = replace(
            sums,
            num_turns=sums.num_turns + is_turn,
            waited_s=sums.waited_s + held.lease.waited_s,
            held_s=sums.held_s + held_s,
        )


def _nothing() -> None:
    """What a forked child waits for."""
