"""What else a machine does while a trial runs: its speed before and after, its load, and who used its processors.

A speed probe is a fixed piece of one thread's work, which takes longer on a machine whose clock or host slows it down.
Other processes show in processor time that is in use and not the run's own. So a trial can be told from the machine's
own doing, from the record alone; `harness.validity` has the limits.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime

import psutil

from crossover.supervisor import descendants
from results.facts import MachineFacts, ProbeFacts

PROBE_BYTES = 1 << 20  # some milliseconds of hashing: longer than a timer's grain, shorter than a user notices
NUM_PROBES = 5


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """Seconds of all processors so far: in use by processes, `own` of them by the run, in use in all (interrupts too),
    stolen by the machine's host, and altogether."""

    processes_s: float
    own_s: float
    busy_s: float
    stolen_s: float
    total_s: float


class MachineWatch:
    """Watches the machine over one trial after the other.

    `root` is the process whose descendants are the run's own: this one, or the launcher that also started other ranks.
    It remembers the fastest probe, against which every other one is held.
    """

    def __init__(self, root: int | None = None) -> None:
        self._root = psutil.Process(root)
        self._fastest_s = probe().speed_s

    def start(self) -> Watched:
        """Probe the machine and begin to watch it."""
        before = self._probe()
        return Watched(self, now(), before, processor_times(self._root))

    def facts(self, before: ProbeFacts, then: ProcessorTimes) -> MachineFacts:
        """What the machine did since `then`."""
        end = processor_times(self._root)
        # A trial that fails at once may end within one tick of the kernel's clock.
        passed_s = max(end.total_s - then.total_s, 1e-9)
        others_s = end.processes_s - then.processes_s - (end.own_s - then.own_s)
        after = self._probe()
        return MachineFacts(
            before=before,
            after=after,
            busy_share=_share(end.busy_s - then.busy_s, passed_s),
            stolen_share=_share(end.stolen_s - then.stolen_s, passed_s),
            other_share=_share(others_s, passed_s),
            fastest_s=self._fastest_s,
        )

    def _probe(self) -> ProbeFacts:
        found = probe()
        self._fastest_s = min(self._fastest_s, found.speed_s)
        return found


@dataclass(frozen=True, slots=True)
class Watched:
    """The machine at the start of a trial; `stop` compares it with the end."""

    watch: MachineWatch
    started_at: str
    before: ProbeFacts
    times: ProcessorTimes

    def stop(self) -> tuple[str, MachineFacts]:
        """When the trial ended, and what the machine did meanwhile."""
        ended_at = now()
        return ended_at, self.watch.facts(self.before, self.times)


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


def processor_times(root: psutil.Process) -> ProcessorTimes:
    """Processor time so far, of the machine and of `root` with all that descends from it."""
    times = psutil.cpu_times()
    stolen_s = float(getattr(times, "steal", 0.0))
    idle_s = float(times.idle) + float(getattr(times, "iowait", 0.0))
    interrupts_s = float(getattr(times, "irq", 0.0)) + float(getattr(times, "softirq", 0.0))
    # Linux counts the time of guests within that of users.
    total_s = sum(value for name, value in times._asdict().items() if not name.startswith("guest"))
    busy_s = total_s - idle_s - stolen_s
    # Sockets are shaped in interrupts, which belong to no process and would look like somebody else's work.
    return ProcessorTimes(busy_s - interrupts_s, _own_s(root), busy_s, stolen_s, total_s)


def _own_s(root: psutil.Process) -> float:
    """Of every living process with the ended ones that it has waited for: so nothing is lost when a rank ends."""
    found_s = 0.0
    for pid in (root.pid, *descendants(root.pid)):  # psutil's own list fails on processes of others (hidepid)
        try:
            found_s += sum(psutil.Process(pid).cpu_times()[:4])  # user, system, and both of its ended children
        except psutil.NoSuchProcess:
            continue  # its parent has its time by now, or will have at the next look
    return found_s


def _share(part_s: float, whole_s: float) -> float:
    return min(1.0, max(0.0, part_s / whole_s))
