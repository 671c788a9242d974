"""A virtual clock with threads on it, and the link that messages in flight share. Exact, single-threaded, no I/O.

A thread is a generator: it yields the seconds that it works, or PARK to sleep until somebody wakes it.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

PARK = None
Routine = Generator[float | None, None, None]
NEARLY_DONE = 1e-12  # of a message: what rounding leaves


class Clock:
    """Events in order of time, equal times in order of their making."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action` in `delay_s` seconds."""
        heapq.heappush(self._events, (self.now_s + delay_s, next(self._numbers), action))

    def run(self, until: Callable[[], bool]) -> bool:
        """Go on until `until()`, or until nothing is left to happen; whether it came true."""
        while not until():
            if not self._events:
                return False
            self.now_s, _, action = heapq.heappop(self._events)
            action()
        return True


class Thread:
    """Runs `routine` on `clock`. `slowed()` is by what its work is longer at the moment, asked again by `respeed`."""

    def __init__(self, clock: Clock, routine: Routine, slowed: Callable[[], float] = lambda: 1.0) -> None:
        self._clock, self._routine, self._slowed = clock, routine, slowed
        self._is_parked, self._is_waking = False, False
        self._left_s, self._since_s, self._factor, self._version = 0.0, 0.0, 1.0, 0
        self._work(0.0)

    def wake(self, delay_s: float = 0.0) -> None:
        """Have it run again in `delay_s` if it sleeps."""
        if self._is_parked and not self._is_waking:
            self._is_waking = True
            self._clock.after(delay_s, self._resume)

    def respeed(self) -> None:
        """What slows it has changed."""
        if self._is_parked or self._slowed() == self._factor:
            return
        self._left_s -= (self._clock.now_s - self._since_s) / self._factor
        self._work(max(0.0, self._left_s))

    def _work(self, seconds: float) -> None:
        self._left_s, self._since_s, self._factor = seconds, self._clock.now_s, self._slowed()
        self._version += 1
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


@dataclass(slots=True, eq=False)
class _Flow:
    """A message on the link: seconds that it takes alone, the share of them that is link time, and what is left."""

    alone_s: float
    link_share: float
    done: Callable[[], None]
    left: float = 1.0
    speed: float = 1.0

    def left_s(self) -> float:
        """Seconds to its end at the present speed."""
        return max(0.0, self.left) * self.alone_s / self.speed


@dataclass(slots=True)
class Link:
    """Messages in flight share the link's time evenly, none gets more than it can use."""

    clock: Clock
    on_change: Callable[[], None] = lambda: None
    num_in_flight: int = 0
    _flows: list[_Flow] = field(default_factory=list)
    _since_s: float = 0.0
    _version: int = 0

    def carry(self, wait_s: float, spread_s: float, link_s: float, done: Callable[[], None]) -> None:
        """Call `done` when a message is through: `wait_s` first, then `spread_s` of waiting among `link_s` of link."""
        self.num_in_flight += 1
        self.on_change()
        alone_s = spread_s + link_s
        flow = _Flow(alone_s, link_s / alone_s if alone_s > 0 else 0.0, done)
        self.clock.after(wait_s, lambda: self._begin(flow))

    def _begin(self, flow: _Flow) -> None:
        self._advance()
        self._flows.append(flow)
        self._share()

    def _advance(self) -> None:
        passed_s = self.clock.now_s - self._since_s
        for flow in self._flows:
            flow.left -= passed_s * flow.speed / flow.alone_s if flow.alone_s > 0 else flow.left
        self._since_s = self.clock.now_s

    def _share(self) -> None:
        """New speeds, and when the next flow is through with them."""
        left, num = 1.0, len(self._flows)
        for flow in sorted(self._flows, key=lambda flow: flow.link_share):
            share = min(flow.link_share, left / num)
            flow.speed = share / flow.link_share if flow.link_share > 0 else 1.0
            left, num = left - share, num - 1
        self._version += 1
        version = self._version
        if self._flows:
            first = min(self._flows, key=_Flow.left_s)
            self.clock.after(first.left_s(), lambda: self._collect(version, first))

    def _collect(self, version: int, first: _Flow) -> None:
        """`first` is through by now, whatever rounding says, and so may others be."""
        if version != self._version:
            return
        self._advance()
        through = [flow for flow in self._flows if flow is first or flow.left <= NEARLY_DONE]
        self._flows = [flow for flow in self._flows if flow not in through]
        self.num_in_flight -= len(through)
        self._share()
        self.on_change()
        for flow in through:
            flow.done()
