"""How long tests wait: bounds against hanging that follow the speed of this machine, here and now."""

from __future__ import annotations

import os
import time
from functools import cache

SLOWNESS = "CROSSOVER_TESTS_SLOWNESS"  # in the environment: a test and the processes it starts have one measure
_NUM_TERMS = 600_000
_REFERENCE_S = 0.017  # of `reference_work` on an idle core of the machine on which the bounds were written


@cache
def slowness() -> float:
    """How many times longer a computation takes here than on an idle core of the reference machine; at least 1.

    The larger of two measures, taken once per run of the tests. One is a sum by the wall clock: it knows this process's
    priority. The other is the same sum by processor time, times the load per core: it knows the last minute.
    """
    if SLOWNESS in os.environ:
        return float(os.environ[SLOWNESS])
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    reference_work()
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    load_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    found = max(1.0, wall_s / _REFERENCE_S, cpu_s / _REFERENCE_S * max(1.0, load_per_core))
    os.environ[SLOWNESS] = repr(found)
    return found


def reference_work() -> int:
    """A fixed amount of work for the interpreter."""
    return sum(range(_NUM_TERMS)) + sum(term & 1 for term in range(_NUM_TERMS // 2))


def patience_s(idle_s: float) -> float:
    """Seconds after which something hangs that takes less than `idle_s` seconds on an idle core."""
    return idle_s * slowness()


def cpu_limit_s(reference_s: float) -> float:
    """The processor seconds that stand here and now for `reference_s` seconds of the reference machine.

    A busy neighbour slows processor time down too (shared caches, hyper-threads), so this is measured at each call.
    """
    began_s = time.process_time()
    reference_work()
    return reference_s * max(1.0, (time.process_time() - began_s) / _REFERENCE_S)
