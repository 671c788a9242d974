"""What only a GPU can tell: when its work of a turn began and ended, and how much of its memory a job took.

On the host a turn ends with a Python call; the device may have ended before (nobody looked) or, with
`release=launch`, may end long after. `EventTurns` puts an event at either end of a turn on the present stream. Events
know times relative to each other alone, so two of them, at which the host waited for the device, tie the rest to the
machine's monotonic clock, which all jobs of a host share: so one job's last event and the next one's first can be
subtracted, although they belong to different processes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from crossover import Lease, TurnTaking
from harness.turns import LoggedTurns, Turn
from models.workload import Device


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The most that torch's allocator had given out, and had taken from the device, in bytes."""

    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0


def keep_forkable() -> None:
    """Call before torch first looks for a GPU in a process that forks ranks: it then asks the driver's library (NVML)
    instead of CUDA, which a forked process could not start again."""
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def peak_memory(device: Device) -> GpuMemory:
    """Of this process since it started; zeros where it computes on no GPU."""
    if device is not Device.CUDA:
        return GpuMemory()
    return GpuMemory(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


def until_idle(device: Device) -> None:
    """Return when the work of all of this process's streams is done; at once where it computes on no GPU."""
    if device is Device.CUDA:
        torch.cuda.synchronize()


def logged_turns(turns: TurnTaking, device: Device) -> LoggedTurns:
    """`turns` with a log, kept by the device itself where that is a GPU, which must be the present one."""
    return EventTurns(turns) if device is Device.CUDA else LoggedTurns(turns)


def own_times(turns: LoggedTurns) -> tuple[Turn, ...]:
    """The log, in the device's own times if it kept them. Call it once, when all turns are over."""
    return turns.on_device() if isinstance(turns, EventTurns) else tuple(turns.turns)


class EventTurns(LoggedTurns):
    """Turns whose log the device keeps."""

    def __init__(self, turns: TurnTaking) -> None:
        super().__init__(turns)
        self._anchor = _waited_for_s()
        self._events: list[torch.cuda.Event] = []  # begin, end, begin, end, …

    def acquire(self, *, aside: bool = False) -> Lease:
        """As the inner turns do, and an event where the turn's work begins."""
        lease = super().acquire(aside=aside)
        self._events.append(_recorded())
        return lease

    def release(self, lease: Lease) -> None:
        """An event behind the turn's last work, before anybody else is let in."""
        self._events.append(_recorded())
        super().release(lease)

    def on_device(self) -> tuple[Turn, ...]:
        """When the device began and ended each turn's work; waits for it once."""
        (first_s, first), (last_s, last) = self._anchor, _waited_for_s()
        chain = [first, *self._events, last]
        # From event to event, since one long span in a 32-bit float of milliseconds would lose microseconds.
        gaps_s = [1e-3 * before.elapsed_time(after) for before, after in itertools.pairwise(chain)]
        return with_device_times(self.turns, on_host_clock(gaps_s, first_s, last_s))


def on_host_clock(gaps_s: Sequence[float], first_s: float, last_s: float) -> list[float]:
    """Host times of the events between two anchors at `first_s` and `last_s`; `gaps_s` from event to event, anchors
    included. What the two clocks disagree by over the whole span is spread evenly."""
    elapsed_s = list(itertools.accumulate(gaps_s))
    # The device's clock and the host's drift apart, over a long trial by more than a hand-over takes.
    rate = (last_s - first_s) / elapsed_s[-1]
    return [first_s + rate * since_s for since_s in elapsed_s[:-1]]


def with_device_times(turns: Sequence[Turn], ends_s: Sequence[float]) -> tuple[Turn, ...]:
    """`turns` with the device's times: begin, end, begin, end, …"""
    pairs = zip(turns, ends_s[::2], ends_s[1::2], strict=True)
    return tuple(Turn(turn.asked_s, begin_s, end_s) for turn, begin_s, end_s in pairs)


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _waited_for_s() -> tuple[float, torch.cuda.Event]:
    """An event and the host's time at it."""
    event = _recorded()
    event.synchronize()
    return perf_counter(), event
