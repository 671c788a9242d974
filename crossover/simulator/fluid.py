"""A virtual clock, and servers that share themselves among the works they have."""

from collections import deque
from collections.abc import Callable, Iterable
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

    def advance(self) -> bool:
        """Go to the next entry and do it; False when there is none."""
        if not self._entries:
            return False
        self.now_s, _, action = heappop(self._entries)
        action()
        return True


class Fluid:
    """A server on which each of n works progresses at speed/n, exactly, with every arrival and departure.

    A work is a sequence of milestones, (amount of service since its arrival, action), in ascending order; it departs
    with its last one, before the action. All works get the same service, so that one number says how far each is.
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._works: list[deque[tuple[float, Action]]] = []
        self._served: float = 0
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

    def add(self, milestones: Iterable[tuple[float, Action]]) -> None:
        """A work arrives."""
        self._account()
        if not self._works:
            self._served = 0  # small numbers stay exact
        self._works.append(deque((self._served + amount, action) for amount, action in milestones))
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
            self._served += (now_s - self._since_s) * self._speed / len(self._works)
            self._busy_s += now_s - self._since_s
        self._since_s = now_s

    def _replan(self) -> None:
        self._plan += 1
        if self._works:
            work = min(self._works, key=_next_target)
            missing = max(0, work[0][0] - self._served)
            at_s = self._agenda.now_s + missing * len(self._works) / self._speed
            self._agenda.plan(at_s, partial(self._reach, self._plan, work))

    def _reach(self, plan: int, work: deque[tuple[float, Action]]) -> None:
        if plan != self._plan:
            return  # something changed since, and made a new plan
        self._account()
        self._served, action = work.popleft()
        if not work:
            self._works = [other for other in self._works if other is not work]
        self._replan()
        action()


def _next_target(work: deque[tuple[float, Action]]) -> float:
    return work[0][0]
