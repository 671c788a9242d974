"""What sharing in turns can reach at best, from each job's own numbers.

Job i needs the device c_i and the link m_i seconds per step, and takes t_i alone. While k jobs make one step each, the
device works Σc, the link Σm, and no job is faster than alone, so the period is at least

    T* = max(Σc_i, Σm_i, max t_i)        and the gain over one job after the other at most   G = Σt_i / T*

which is at most 2 where no step is longer than its parts (t_i ≤ c_i + m_i).

A token that goes round reaches T* when it is released at the end of backward, the link is first come first served, and
a job waits only for its own messages; `crossover.simulator` shows it with the scheduler's own policies. Identical jobs
without overlap inside a step, ρ = m/c: G = 1+ρ up to ρ = 1 and 1+1/ρ beyond (k = 2). Holding the token through
communication: G = 1. With overlap (gradients leave evenly from the time f of the first bucket on) the job alone is
faster, and less is left to gain: G ≤ 1 + f/max(c, m).

`predicted` adds what T* leaves out: a hand-over of s seconds a turn, and computation that runs at 1/(1+σ) while
messages travel, which costs σ/(1+σ) of every second of communication: T ≈ Σc + k·s + Σm·σ/(1+σ) where jobs are
bound by computation. A job that bounds the others comes to a free device: what asking costs then is in its t already,
which was measured under an arbiter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from crossover.errors import Refused


class Limit(StrEnum):
    """What the period is bound by."""

    COMPUTE = "compute"
    COMMUNICATION = "communication"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class JobCost:
    """One job's step alone: device time, link time, and step time (c + m without overlap, less with it), in seconds."""

    compute_s: float
    communication_s: float
    solo_s: float

    def __post_init__(self) -> None:
        times = (self.compute_s, self.communication_s, self.solo_s)
        if not all(isfinite(time_s) and time_s >= 0 for time_s in times) or self.solo_s == 0:
            raise Refused(
                f"a job's costs are times in seconds, with solo_s above 0, not {times}: measure it alone first"
            )

    @property
    def exposed_s(self) -> float:
        """Communication that the job's own computation does not hide: t − c."""
        return max(0.0, self.solo_s - self.compute_s)


@dataclass(frozen=True, slots=True)
class Bound:
    """The least period (every job one step) and with it the greatest gain over running one job after the other."""

    period_s: float
    gain: float
    limiting: Limit


def bound(jobs: Sequence[JobCost]) -> Bound:
    """T*, G and the limiting resource for jobs that share one device and one link."""
    if not jobs:
        raise Refused("a bound needs at least one job")
    limits = {
        Limit.COMPUTE: sum(job.compute_s for job in jobs),
        Limit.COMMUNICATION: sum(job.communication_s for job in jobs),
        Limit.JOB: max(job.solo_s for job in jobs),
    }
    limiting = max(limits, key=limits.__getitem__)
    period_s = limits[limiting]
    return Bound(period_s, sum(job.solo_s for job in jobs) / period_s, limiting)


def predicted(jobs: Sequence[JobCost], *, handover_s: float = 0.0, interference: float = 0.0) -> Bound:
    """T* with what a hand-over costs (once a turn) and with computation slowed by communication beside it:
    T = max(Σc + k·s + Σm·σ/(1+σ), Σm, max t). The gain is over the jobs' own step times, as they were measured."""
    if not all(isfinite(value) and value >= 0 for value in (handover_s, interference)):
        raise Refused(f"handover_s and interference must be 0 or more, not {handover_s} and {interference}")
    best = bound(jobs)
    communication_s = sum(job.communication_s for job in jobs)
    compute_s = (
        sum(job.compute_s for job in jobs)
        + len(jobs) * handover_s
        + communication_s * interference / (1 + interference)
    )
    if compute_s <= best.period_s:
        return best
    return Bound(compute_s, sum(job.solo_s for job in jobs) / compute_s, Limit.COMPUTE)
