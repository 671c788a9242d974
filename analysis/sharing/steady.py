"""The steps of a job that count where jobs share: those in which all jobs of the record ran."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from analysis.sharing.rows import EXCLUSIVE
from results.record import JobResult, Record


def steady_step_time_s(record: Record, job: JobResult) -> float:
    """Mean step time of `job` over the steps in which all jobs of the record ran."""
    return statistics.fmean(steady_steps_s(record, job))


def steady_steps_s(record: Record, job: JobResult) -> Sequence[float]:
    """The steps of `job` in which all jobs of the record ran.

    Steps are laid out in proportion between the job's start and end, warm-up first, since a
    record keeps durations and not instants. Without start and end, or without one common step,
    all measured steps count. Jobs that never ran together (groups one after the other) share the whole
    makespan: each one's step is the makespan over its steps.
    """
    steps = job.step_times_s()
    begin, end = _common_span(record)
    length = job.end_s - job.start_s
    if length > 0 and end <= begin and record.makespan_s and record.sharing != EXCLUSIVE:
        return (record.makespan_s / (len(steps) + len(job.ranks[0].warmup_s)),)
    if length <= 0 or end <= begin:
        return steps
    warmup = sum(max(times) for times in zip(*(rank.warmup_s for rank in job.ranks), strict=False))
    scale = length / (warmup + sum(steps))
    edges = [job.start_s + scale * (warmup + passed) for passed in itertools.accumulate(steps, initial=0.0)]
    common = [step for step, (a, b) in zip(steps, itertools.pairwise(edges), strict=True) if begin <= a and b <= end]
    return common or steps


def _common_span(record: Record) -> tuple[float, float]:
    return max(job.start_s for job in record.jobs), min(job.end_s for job in record.jobs)


def steps_here_s(record: Record, job: JobResult) -> Sequence[float]:
    """The steps of one job: all of them where jobs run one after the other."""
    return job.step_times_s() if record.sharing == EXCLUSIVE else steady_steps_s(record, job)


def time_here_s(record: Record, job: JobResult) -> float:
    """Their mean."""
    return statistics.fmean(steps_here_s(record, job))
