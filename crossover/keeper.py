"""A process's turns: when one begins, what was put off until then runs first; when it ends, the device is idle.

    begin():  wait for own messages (no lease) → acquire → run the deferred calls in order
    end():    device idle → release            (`Extent.MESSAGES`: own messages too, before the release)

A keeper knows no framework: the integrations call `begin` and `end` where their framework computes, and `defer` what
must not run outside a turn, such as the update. It belongs to one process and is used by one thread at a time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from crossover.client import Lease, TurnTaking
from crossover.errors import LeaseLost
from crossover.policies import Extent

NUM_SPANS_KEPT = 4096

_log = logging.getLogger("crossover")


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """One turn: when it was asked for (monotonic clock), how long it was waited for and how long it was held."""

    asked_s: float
    waited_s: float
    held_s: float


@dataclass(frozen=True, slots=True)
class TurnStatistics:
    """Sums since the beginning. `num_lost` counts leases that the arbiter withdrew before their release; leases aside
    count in `waited_s` and `held_s`, not in `num_turns`."""

    num_turns: int = 0
    waited_s: float = 0.0
    held_s: float = 0.0
    num_lost: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    lease: Lease
    aside: bool
    asked_s: float
    began_s: float


class TurnKeeper:
    """One job's turns in one process. `wait` returns when the job's own messages are complete and never runs under a
    lease, except at the end of a turn that lasts until then; `idle` returns when the device has done what it was given
    (or at once, where a release may come before)."""

    def __init__(self, turns: TurnTaking, wait: Callable[[], None], idle: Callable[[], None]) -> None:
        self._turns, self._wait, self._idle = turns, wait, idle
        self._held: _Held | None = None
        self._deferred: deque[Callable[[], object]] = deque()
        self._is_running_deferred = False
        self._statistics = TurnStatistics()
        self._spans: deque[TurnSpan] = deque(maxlen=NUM_SPANS_KEPT)

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
        """Start a turn and run what was deferred. Under a lease, only what was deferred."""
        if self._held is None:
            self._enter(aside=False)
        else:
            self._run_deferred()

    def end(self) -> None:
        """Give the turn back once the device is idle; nothing outside a turn, or under a lease aside."""
        if self._held is not None and not self._held.aside:
            self._finish()

    def defer(self, call: Callable[[], object]) -> None:
        """Run `call` at the beginning of the next lease, after what was deferred before."""
        self._deferred.append(call)

    def flush(self) -> None:
        """Run what was deferred now: under a lease aside, or in the turn that lasts. Nothing deferred, nothing done."""
        if self._deferred:
            with self.aside():
                pass

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A lease that is no turn, for what one worker does and others do not; what was deferred runs first. Under a
        lease, only that."""
        if self._held is not None:
            self._run_deferred()
            yield
            return
        self._enter(aside=True)
        try:
            yield
        finally:
            if self.in_turn:  # it may have been closed inside
                self._finish()

    def close(self) -> None:
        """Run what was deferred, give back a lease, leave. May be called again."""
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
        self._turns.leave()

    def _enter(self, *, aside: bool) -> None:
        asked_s = time.monotonic()
        self._wait()
        lease = self._acquire(aside)
        self._held = _Held(lease, aside, asked_s, time.monotonic())
        try:
            self._run_deferred()
        except BaseException:
            self._finish()
            raise

    def _acquire(self, aside: bool) -> Lease:
        try:
            return self._turns.acquire(aside=aside)
        except LeaseLost as error:  # of the turn before, whose release was not waited for
            self._note_loss(error)
        return self._turns.acquire(aside=aside)

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
        held, self._held = self._held, None
        assert held is not None
        try:
            self._idle()
            if self.extent is Extent.MESSAGES and not held.aside:
                self._wait()
        finally:
            self._give_back(held)

    def _give_back(self, held: _Held) -> None:
        held_s = time.monotonic() - held.began_s
        try:
            self._turns.release(held.lease)
        except LeaseLost as error:
            self._note_loss(error)
        if not held.aside:
            self._spans.append(TurnSpan(held.asked_s, held.lease.waited_s, held_s))
        sums = self._statistics
        self._statistics = replace(
            sums,
            num_turns=sums.num_turns + (not held.aside),
            waited_s=sums.waited_s + held.lease.waited_s,
            held_s=sums.held_s + held_s,
        )

    def _note_loss(self, error: LeaseLost) -> None:
        """The turn is over all the same, and the job's results are right: only the device was shared for a while."""
        _log.warning("a turn ended without its lease: %s", error)
        self._statistics = replace(self._statistics, num_lost=self._statistics.num_lost + 1)
