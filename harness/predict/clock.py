"""Threads on the virtual clock of `crossover.simulator`, and messages on its fluid link.

A thread is a generator: it yields the seconds that it works, or PARK to sleep until somebody wakes it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from crossover.simulator.fluid import Action, Agenda, Fluid

PARK = None
NEGLIGIBLE = 1e-12  # a share of the link that a message may use and nobody misses
Routine = Generator[float | None, None, None]


def run_until(clock: Agenda, done: Callable[[], bool]) -> bool:
    """Go on until `done()`, or until nothing is left to happen; whether it came true."""
    while not done():
        if not clock.advance():
            return False
    return True


def carry(clock: Agenda, link: Fluid, phases: tuple[float, float, float], done: Action) -> None:
    """Call `done` when a message is through: it waits first, then has some waiting spread over its time on the link.

    `phases` are these three in seconds. Spread waiting keeps a message from using all of a link that it has alone.
    """
    wait_s, spread_s, link_s = phases
    most = link_s / (spread_s + link_s) if link_s else 0.0
    if most < NEGLIGIBLE:
        clock.after(wait_s + spread_s, done)
    else:
        clock.after(wait_s, lambda: link.add([(link_s, done)], most))


class Thread:
    """Runs `routine` on `clock`. `slowed()` is by what its work is longer at the moment, asked again by `respeed`."""

    def __init__(self, clock: Agenda, routine: Routine, slowed: Callable[[], float] = lambda: 1.0) -> None:
        self._clock, self._routine, self._slowed = clock, routine, slowed
        self._is_parked, self._is_waking = False, False
        self._left_s, self._since_s, self._factor, self._version = 0.0, 0.0, 1.0, 0
        self._work(0.0)

    def wake(self, delay_s: float = 0.0) -> None:
        """Have it run again in `delay_s` if it sleeps."""
        # Several events may wake a thread at once; it runs once and sees them all.
        if self._is_parked and not self._is_waking:
            self._is_waking = True
            self._clock.after(delay_s, self._resume)

    def respeed(self) -> None:
        """What slows it has changed."""
        if self._is_parked or self._slowed() == self._factor:
            return
        # What was done so far was done at the old speed.
        self._left_s -= (self._clock.now_s - self._since_s) / self._factor
        self._work(max(0.0, self._left_s))

    def _work(self, seconds: float) -> None:
        self._left_s, self._since_s, self._factor = seconds, self._clock.now_s, self._slowed()
        self._version += 1
        # An entry of the agenda cannot be taken back; one of an older version is ignored when its time comes.
        version = self._version
        self._clock.after(seconds * self._factor, lambda: self._worked(version))

    def _worked(self, version: int) -> None:
        if version == self._version:
            self._resume()

    def _resume(self) -> None:
        self._is_parked = self._is_waking = False
        try:
            seconds = next(self._routine)
        except StopIteration:
            self._is_parked = True
            return
        if seconds is PARK:
            self._is_parked = True
        else:
            self._work(seconds)
