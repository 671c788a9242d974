"""A split network's step on a virtual clock: a device computes, its link exchanges, and deferred sums fill the link.

Devices are alike and do the same at the same time, so one stands for all. With `overlap`, gradients' sums leave behind
backward's computation, in the order in which backward makes them; an exchange that computation waits for goes before
all that have not begun. Without it, everything happens one after the other, as the planners count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from baselines.parallelism.plans import Machine
from baselines.parallelism.split_programs import Computation, SplitExchange, SplitInstruction


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTimeline:
    """One device's step: how long it takes, computes and exchanges; `exposed_s` of it the device does not compute."""

    step_s: float
    compute_s: float
    exchange_s: float
    sent_bytes: float
    num_messages: int

    @property
    def exposed_s(self) -> float:
        """Seconds of a step in which the device waits for the link."""
        return self.step_s - self.compute_s


def run_split_on_clock(program: Sequence[SplitInstruction], machine: Machine, *, overlap: bool = True) -> SplitTimeline:
    """Run one step on one device that stands for all."""
    now_s = compute_s = 0.0
    link = _Link(machine)
    for instruction in program:
        if isinstance(instruction, Computation):
            now_s += instruction.duration_s
            compute_s += instruction.duration_s
        elif overlap and instruction.is_deferred:
            link.defer(instruction, now_s)
        else:
            now_s = link.exchange(instruction, now_s)
    exchanges = [own for own in program if isinstance(own, SplitExchange)]
    return SplitTimeline(
        step_s=max(now_s, link.drained_s()),
        compute_s=compute_s,
        exchange_s=sum(own.duration_s(machine) for own in exchanges),
        sent_bytes=sum(own.sent_bytes for own in exchanges),
        num_messages=len(exchanges),
    )


class _Link:
    """One exchange at a time; one that has begun is not interrupted."""

    def __init__(self, machine: Machine) -> None:
        self._machine, self._free_s = machine, 0.0
        self._waiting: deque[tuple[float, SplitExchange]] = deque()

    def defer(self, exchange: SplitExchange, now_s: float) -> None:
        self._waiting.append((now_s, exchange))

    def exchange(self, exchange: SplitExchange, now_s: float) -> float:
        """When it is done."""
        # Deferred ones that the idle link could begin with before this one came have begun.
        while self._waiting and max(self._waiting[0][0], self._free_s) < now_s:
            self._begin_next()
        self._free_s = max(now_s, self._free_s) + exchange.duration_s(self._machine)
        return self._free_s

    def drained_s(self) -> float:
        """When the last one is done."""
        while self._waiting:
            self._begin_next()
        return self._free_s

    def _begin_next(self) -> None:
        since_s, exchange = self._waiting.popleft()
        self._free_s = max(since_s, self._free_s) + exchange.duration_s(self._machine)
