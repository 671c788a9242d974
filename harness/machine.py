"""What else a machine does while a trial runs: its speed before and after, its load, and who used its processors.

A speed probe is a fixed piece of one thread's work. A machine that is busy with something else, or whose host slows it
down, takes longer for it; so a trial can be told from the machine's own doing, from the record alone.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from results.facts import MachineFacts, ProbeFacts

PROBE_BYTES = 1 << 20  # some milliseconds of hashing: longer than a timer's grain, shorter than a user notices
NUM_PROBES = 5


@dataclass(frozen=True, slots=True)
class MachineWatch:
    """The machine at the start of a trial; `stop` compares it with the end."""

    started_at: str
    before: ProbeFacts
    busy_s: float
    stolen_s: float
    total_s: float

    def stop(self) -> tuple[str, MachineFacts]:
        """When the trial ended, and what the machine did meanwhile."""
        busy_s, stolen_s, total_s = _processor_times()
        # A trial that fails at once may end within one tick of the kernel's clock.
        passed_s = max(total_s - self.total_s, 1e-9)
        ended_at = now()
        return ended_at, MachineFacts(
            before=self.before,
            after=probe(),
            busy_share=min(1.0, max(0.0, (busy_s - self.busy_s) / passed_s)),
            stolen_share=min(1.0, max(0.0, (stolen_s - self.stolen_s) / passed_s)),
        )


def watch() -> MachineWatch:
    """Probe the machine and begin to watch it."""
    # Before the counters are read, so that the probe itself is in no trial's load.
    before = probe()
    return MachineWatch(now(), before, *_processor_times())


def probe() -> ProbeFacts:
    """Median seconds of a fixed piece of work, and the load average of the last minute."""
    work, times_s = bytes(PROBE_BYTES), []
    for _ in range(NUM_PROBES):
        begin_s = time.perf_counter()
        hashlib.sha256(work).digest()
        times_s.append(time.perf_counter() - begin_s)
    return ProbeFacts(speed_s=statistics.median(times_s), load_1min=os.getloadavg()[0])


def now() -> str:
    """The time in UTC to the millisecond, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _processor_times() -> tuple[float, float, float]:
    """Seconds of all processors so far: in use, stolen by the machine's host, and altogether."""
    times = psutil.cpu_times()
    stolen_s = float(getattr(times, "steal", 0.0))
    idle_s = float(times.idle) + float(getattr(times, "iowait", 0.0))
    # Linux counts the time of guests within that of users.
    counted = sum(value for name, value in times._asdict().items() if not name.startswith("guest"))
    return counted - idle_s - stolen_s, stolen_s, counted
