"""What a reviewer asks of shared devices beyond the gain: tails, fairness, turns, equal weights, phases, bigger batch.

Jain's index of x₁…x_k is (Σx)² / (k·Σx²): 1 where all are equal, 1/k where one has everything.
Source: Jain, Chiu, Hawe, "A quantitative measure of fairness", DEC-TR-301, 1984.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from analysis.cells import fabric_key, is_measured, is_shared, step_time_s, work_of
from analysis.sharing.rows import NAIVE, PHASE, Paired, PairRow, PhaseRange, RivalRow, SharingRow, TurnFacts
from analysis.stats import median_interval, paired_ratio
from results.record import JobResult, Record, SharingFacts

Matched = Sequence[tuple[Record, Record]]


def jain_index(paired: Paired) -> float:
    """Fairness of the jobs' normalised progress, solo step time over step time here."""
    progress = [alone / here for alone, here in zip(paired.solo_s, paired.here_s, strict=True)]
    return float(sum(progress) ** 2 / (len(progress) * sum(x * x for x in progress)))


def p99_ratio(place: int, matched: Matched, steps_s: Callable[[Record, JobResult], Sequence[float]]) -> float | None:
    """The 99th percentile of one job's steps here over that of its steps alone, the repeats pooled."""
    here = [step for _, record in matched for step in steps_s(record, record.jobs[place])]
    alone = [step for record, _ in matched for step in record.jobs[place].step_times_s()]
    return float(np.quantile(here, 0.99) / np.quantile(alone, 0.99)) if here and alone else None


def exposed_share(solo: Iterable[JobResult]) -> float | None:
    """The share of a step alone that communication adds to computation: from the costs, else from the wait seen."""
    shares = [share for job in solo if (share := _exposed(job)) is not None]
    return statistics.median(shares) if shares else None


def _exposed(job: JobResult) -> float | None:
    if job.costs is not None and job.costs.solo_s > 0:
        return max(0.0, 1.0 - job.costs.compute_s / job.costs.solo_s)
    return None if job.phases.exposed_s is None else job.phases.exposed_s / step_time_s(job)


def turn_facts(facts: Sequence[SharingFacts]) -> TurnFacts | None:
    """Medians over repeats; None where nothing was recorded."""
    if not facts:
        return None
    p50s = _known(fact.handover_p50_s for fact in facts)
    return TurnFacts(
        num_handovers=statistics.median(fact.num_handovers for fact in facts),
        handover_p50_s=median_interval(p50s) if p50s else None,
        handover_p99_s=_median(fact.handover_p99_s for fact in facts),
        device_busy=_median(fact.device_busy for fact in facts),
        link_busy=_median(fact.link_busy for fact in facts),
        peak_memory_bytes=max(fact.peak_memory_bytes for fact in facts),
    )


def weights_against(matched: Matched) -> tuple[int, int]:
    """How many jobs ended with the weights of their run alone, of those with as many steps, the same seed, a digest."""
    digests = [
        (alone.weights_digest, here.weights_digest)
        for solo, record in matched
        if solo.seed == record.seed
        for alone, here in zip(solo.jobs, record.jobs, strict=True)
        if alone.num_steps == here.num_steps and alone.weights_digest and here.weights_digest
    ]
    return sum(alone == here for alone, here in digests), len(digests)


def phase_range(rows: Sequence[SharingRow]) -> PhaseRange | None:
    """Naive co-location over the start offsets that were tried; None below two of them."""
    offsets = [row for row in rows if row.policy == NAIVE and row.axis == PHASE and row.throughput is not None]
    if len(offsets) < 2:
        return None
    gains = [{one.repeat: one.gain for one in row.paired} for row in offsets]
    repeats = sorted(set.intersection(*(set(gain) for gain in gains)))
    if not repeats:
        return None
    by_repeat = {repeat: statistics.median(gain[repeat] for gain in gains) for repeat in repeats}
    medians = [row.throughput.median for row in offsets if row.throughput is not None]
    median = median_interval(list(by_repeat.values()))
    return PhaseRange(
        num_phases=len(offsets), median=median, lowest=min(medians), highest=max(medians), by_repeat=by_repeat
    )


def rival_row(pair: PairRow, first: Record, cells: Sequence[Sequence[Record]]) -> RivalRow | None:
    """The cell of one job alone that does in one step what the identical jobs of `pair` do in one each, or None.

    Steps are of different work, so samples/s are compared, which for identical jobs is normalised throughput too.
    `first` is any record of the pair.
    """
    reference = next((row for row in pair.rows if row.is_reference), None)
    works = {work[:3] for work in work_of(first)}
    if reference is None or len(works) != 1:
        return None
    batch_size = sum(job.batch_size for job in first.jobs)
    wanted, fabric = ((*works.pop(), batch_size),), fabric_key(first.fabric)
    if batch_size <= first.jobs[0].batch_size:
        return None
    alone = {one.repeat: one.solo_s[0] for one in reference.paired}
    for records in cells:
        both = [record for record in records if record.repeat in alone and _is_alone_at(wanted, fabric, record)]
        if both:
            times = [len(first.jobs) * alone[record.repeat] for record in both]
            ratio = paired_ratio(times, [step_time_s(record.jobs[0]) for record in both])
            return RivalRow(
                cell=both[0].cell,
                batch_size=both[0].jobs[0].batch_size,
                throughput=ratio,
                by_repeat=tuple(zip((record.repeat for record in both), ratio.sample, strict=True)),
                record_ids=tuple(record.id for record in records),
            )
    return None


def _is_alone_at(wanted: object, fabric: object, record: Record) -> bool:
    # What most records fail at comes first, since every one of all suites is asked.
    return (
        bool(record.jobs)
        and not is_shared(record)
        and work_of(record) == wanted
        and fabric_key(record.fabric) == fabric
        and is_measured(record)
    )


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return statistics.median(known) if known else None
