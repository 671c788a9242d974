"""What a rank sends for each parameter and step, and how often that is its code, from records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from analysis.steps.wire_bytes import counted_a_step
from results.facts import CodeFacts, Combine
from results.record import JobResult, Record

ALL_REDUCE, EXCHANGE = "all-reduce", "exchange"
FLOAT_BITS = 32.0
NUM_WARMUP = "num_warmup"  # of a trial: steps before those that are timed


def facts_of(job: JobResult, num_ranks: int) -> CodeFacts:
    """The job's code. Older records do not say how often it is sent: of an all-reduce, and of a tree of two ranks, that
    is known all the same."""
    code = job.code or CodeFacts(bits_per_element=None)
    by_all_reduce = any((own.slot, own.name) == (EXCHANGE, ALL_REDUCE) for own in job.plugins)
    if code.sent_share is not None or not (by_all_reduce or (code.combine is Combine.MERGE and num_ranks <= 2)):
        return code
    summed = 2 * (num_ranks - 1) / num_ranks
    own = float(num_ranks - 1) if code.combine is Combine.CONCAT else summed
    return replace(code, sent_share=own, dense_share=summed)


def mean_bits(records: Sequence[Record]) -> float | None:
    """Bits a parameter and step of one rank, over all steps."""
    jobs = [record.jobs[0] for record in records]
    known = [size for size in map(counted_a_step, jobs) if size is not None]
    return 8 * statistics.median(known) / jobs[0].num_parameters if known and jobs[0].num_parameters else None


def coded_bits(records: Sequence[Record], code: CodeFacts) -> float | None:
    """The same but for a warm-up's first steps, which are sent in full. None where all steps are such, or nobody says
    how many there were or how often they were sent."""
    bits, job = mean_bits(records), records[0].jobs[0]
    if bits is None or not code.dense_steps:
        return bits
    num_warmup: int | None = records[0].trial.get(NUM_WARMUP)
    num_dense, num_steps = code.dense_steps, job.num_steps + (num_warmup or 0)
    if num_warmup is None or code.dense_share is None or num_steps <= num_dense:
        return None
    dense = FLOAT_BITS * code.dense_share
    return max(0.0, (num_steps * bits - num_dense * dense) / (num_steps - num_dense))
