"""What compressing is charged in a replayed step, and by how much the real work went beyond it: the one rule, for the
trial that is judged when it ends and for records that nobody judged then.
"""

from __future__ import annotations

import math
from statistics import fmean

from results.facts import ChargeFacts
from results.record import JobResult, Record


def codec_overrun(record: Record) -> float:
    """By what share of a step a replayed job's codecs worked longer than they were charged for; 0 where nobody can see.

    A small tensor is compressed inside the time that its real one is charged. What takes longer than that is this
    machine's work in the place of the device's. Jobs that take turns wait for each other in that time, so of them
    nothing can be told; of jobs one after the other it can, and the one furthest beyond counts.
    """
    if len(record.jobs) > 1 and record.sharing != "exclusive":
        return 0.0
    return max((_overrun_of(job, record.fabric.size_scale) for job in record.jobs), default=0.0)


def _overrun_of(job: JobResult, size_scale: int) -> float:
    steps_s = job.step_times_s()
    if job.charge is None or job.phases.compress_s is None or not steps_s:
        return 0.0
    return max(0.0, job.phases.compress_s - charged_s(job.charge, job.num_parameters * size_scale)) / fmean(steps_s)


def charged_s(charge: ChargeFacts, num_elements: int) -> float:
    """Seconds that compressing a model of so many real elements is charged per step; 0 where nothing is charged."""
    if not charge.is_charged:
        return 0.0
    num_merges = math.ceil(math.log2(max(1, charge.num_ranks))) if charge.merge_s else 0
    return num_elements * (sum(charge.stages_s) + num_merges * charge.merge_s)
