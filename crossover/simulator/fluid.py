"""A virtual clock, and servers that share themselves among the works they have: exact, single-threaded, no I/O.

The simulator of this package and the benchmark's predictor run on them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count

Action = Callable[[], None]


class Agenda:
    """What happens next: in the order of time, and of planning where times agree."""

    def __init__(self) -> None:
        self.now_s: float = 0
        self._entries: list[tuple[float, int, Action]] = []
        self._planned = count()

    def plan(self, at_s: float, action: Action) -> None:
        """Do `action` when the clock reaches `at_s`."""
        heappush(self._entries, (max(at_s, self.now_s), next(self._planned), action))

    def after(self, delay_s: float, action: Action) -> None:
        """Do `action` in `delay_s` seconds."""
        self.plan(self.now_s + delay_s, action)

    def advance(self) -> bool:
        """Go to the next entry and do it; False when there is none."""
        if not self._entries:
            return False
        self.now_s, _, action = heappop(self._entries)
        action()
        return True


@dataclass(slots=True, eq=False)
class FluidWork:
    """What one work has been served since its arrival, what comes next, the most of the server that it can use, and
    the share that it has now."""

    milestones: deque[tuple[float, Action]]
    most: float
    served: float = 0
    share: float = 0

    @property
    def missing(self) -> float:
        """Service to the next milestone."""
        return max(0, self.milestones[0][0] - self.served)


class Fluid:
    """A server of which n works have 1/n each, exactly, with every arrival and departure.

    A work is a sequence of milestones, (amount of service since its arrival, action), in ascending order; it departs
    with its last one, before the action. A work that cannot use so much leaves the rest to the others (max-min).
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._works: list[FluidWork] = []
        self._since_s: float = 0
        self._speed: float = 1
        self._busy_s: float = 0
        self._plan = 0

    @property
    def busy_s(self) -> float:
        """Time with at least one work, up to now."""
        return self._busy_s + (self._agenda.now_s - self._since_s if self._works else 0)

    @property
    def num_works(self) -> int:
        """How many share it now."""
        return len(self._works)

    def add(self, milestones: Iterable[tuple[float, Action]], most: float = 1) -> None:
        """A work arrives that can use the share `most` of the server, above 0."""
        self._account()
        self._works.append(FluidWork(deque(milestones), most))
        self._replan()

    def set_speed(self, speed: float) -> None:
        """Serve faster or slower from now on; 1 is full speed."""
        if speed != self._speed:
            self._account()
            self._speed = speed
            self._replan()

    def _account(self) -> None:
        now_s = self._agenda.now_s
        if self._works:
            served = (now_s - self._since_s) * self._speed
            for work in self._works:
                work.served += served * work.share
            self._busy_s += now_s - self._since_s
        self._since_s = now_s

    def _replan(self) -> None:
        """New shares, and the milestone that is reached first with them."""
        self._plan += 1
        left, num = 1.0, len(self._works)
        for work in sorted(self._works, key=_most):
            work.share = min(work.most, left / num)
            left, num = left - work.share, num - 1
        if self._works:
            first = min(self._works, key=_until_next)
            at_s = self._agenda.now_s + first.missing / first.share / self._speed
            self._agenda.plan(at_s, partial(self._reach, self._plan, first))

    def _reach(self, plan: int, work: FluidWork) -> None:
        if plan != self._plan:
            return  # something changed since, and made a new plan
        self._account()
        work.served, action = work.milestones.popleft()  # exactly, whatever rounding says
        if not work.milestones:
            self._works.remove(work)
        self._replan()
        action()


def _most(work: FluidWork) -> float:
    return work.most


def _until_next(work: FluidWork) -> float:
    return work.missing / work.share
