"""What happened at a host's token: every turn with its times, and what follows from all jobs' turns together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

from crossover import Extent, Lease, TurnTaking

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn on the machine's monotonic clock: when it was asked for, granted and given back."""

    asked_s: float
    granted_s: float
    released_s: float


def spans_of(turns: Iterable[Turn]) -> tuple[Interval, ...]:
    """When the device was held, turn by turn."""
    return tuple((turn.granted_s, turn.released_s) for turn in turns)


class LoggedTurns(TurnTaking):
    """Turns as they are, with a log. `turns` grows with every release."""

    def __init__(self, turns: TurnTaking) -> None:
        self._inner = turns
        self._granted_s = 0.0
        self.turns: list[Turn] = []

    @property
    def extent(self) -> Extent:
        """How much of a step a turn covers, as the inner turns say."""
        return self._inner.extent

    def acquire(self, *, aside: bool = False) -> Lease:
        """The inner lease."""
        lease = self._inner.acquire(aside=aside)
        self._granted_s = perf_counter()
        return lease

    def release(self, lease: Lease) -> None:
        """The instant before the release is the turn's end."""
        self.turns.append(Turn(self._granted_s - lease.waited_s, self._granted_s, perf_counter()))
        self._inner.release(lease)

    def skip(self, num_rounds: int) -> None:
        """As the inner turns do."""
        self._inner.skip(num_rounds)

    def pause(self) -> None:
        """As the inner turns do."""
        self._inner.pause()

    def resume(self) -> None:
        """As the inner turns do."""
        self._inner.resume()

    def leave(self) -> None:
        """As the inner turns do; the log stays."""
        self._inner.leave()


def handovers_s(jobs: Sequence[Sequence[Turn]]) -> list[float]:
    """Release to next start, for every turn that somebody else waited for while it lasted. `jobs` share one device."""
    turns = sorted(((turn, job) for job, own in enumerate(jobs) for turn in own), key=lambda pair: pair[0].granted_s)
    return [
        after.granted_s - before.released_s
        for (before, job), (after, heir) in itertools.pairwise(turns)
        if heir != job and after.asked_s < before.released_s <= after.granted_s
    ]


def common_window(jobs: Sequence[Sequence[Turn]]) -> Interval:
    """From when the last job began to when the first one ended; empty where one has no turn or they do not meet."""
    if not all(jobs):
        return (0.0, 0.0)
    begin_s, end_s = max(own[0].granted_s for own in jobs), min(own[-1].released_s for own in jobs)
    return (begin_s, max(begin_s, end_s))


def busy_share(intervals: Iterable[Interval], window: Interval) -> float | None:
    """The part of `window` that the union of `intervals` covers; None without a window, or where nobody noted any."""
    (begin_s, end_s), union = window, merged(intervals)
    if end_s <= begin_s or not union:
        return None
    covered_s = sum(max(0.0, min(end, end_s) - max(start, begin_s)) for start, end in union)
    return covered_s / (end_s - begin_s)


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals as disjoint ones, in order."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((start, end))
    return union


def percentiles_s(values: Sequence[float]) -> tuple[float | None, float | None]:
    """p50 and p99; None for no values."""
    return (median(values), float(np.percentile(values, 99))) if values else (None, None)
