"""Rows of the cells whose jobs share devices: gain over running one after the other, beside its bound."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from analysis.cells import FabricKey, fabric_key, is_measured, label_of, shared_repeats, step_time_s
from analysis.naming import short_names
from analysis.rows import PairRow, SharedJobRow, SharingRow
from analysis.stats import Interval, bootstrap_interval, exactly, paired_ratio
from analysis.training import median_phases
from results.record import JobResult, Prediction, Record

EXCLUSIVE = "exclusive"
CROSSOVER = "crossover"
Pair = tuple[FabricKey, tuple[tuple[str, str, str, int], ...]]


def pairs(cells: Sequence[Sequence[Record]], rng: np.random.Generator) -> tuple[PairRow, ...]:
    """Cells with more than one job, grouped by what the jobs are, policies beside each other."""
    groups: dict[Pair, list[list[Record]]] = {}
    for records in cells:
        measured = [record for record in records if is_measured(record) and len(record.jobs) > 1]
        if measured:
            groups.setdefault(_pair(measured[0]), []).append(measured)
    firsts = [group[0][0] for group in groups.values()]
    short = short_names({label_of(job) for first in firsts for job in first.jobs})
    rows = [_pair_row(key, group, short, rng) for key, group in groups.items()]
    return tuple(sorted(rows, key=lambda row: row.title))


def steady_step_time_s(record: Record, job: JobResult) -> float:
    """Mean step time of `job` over the steps in which all jobs of the record ran.

    Steps are laid out in proportion between the job's start and end, warm-up first, since a
    record keeps durations and not instants. Without start and end, or without one common step,
    all measured steps count.
    """
    steps = job.step_times_s()
    begin, end = _common_span(record)
    length = job.end_s - job.start_s
    if length <= 0 or end <= begin:
        return step_time_s(job)
    warmup = sum(max(times) for times in zip(*(rank.warmup_s for rank in job.ranks), strict=False))
    scale = length / (warmup + sum(steps))
    edges = [job.start_s + scale * (warmup + passed) for passed in itertools.accumulate(steps, initial=0.0)]
    common = [step for step, (a, b) in zip(steps, itertools.pairwise(edges), strict=True) if begin <= a and b <= end]
    return statistics.fmean(common or steps)


def _common_span(record: Record) -> tuple[float, float]:
    return max(job.start_s for job in record.jobs), min(job.end_s for job in record.jobs)


def _pair(record: Record) -> Pair:
    jobs = tuple((job.workload, job.system, job.strategy, job.batch_size) for job in record.jobs)
    return fabric_key(record.fabric), jobs


def _pair_row(key: Pair, cells: list[list[Record]], short: Mapping[str, str], rng: np.random.Generator) -> PairRow:
    first = cells[0][0]
    reference = next((records for records in cells if records[0].sharing == EXCLUSIVE), [])
    bounds = {r.repeat: r.prediction for records in cells for r in records if r.sharing == CROSSOVER}
    rows = [_row(records, reference, bounds, rng) for records in cells]
    rows.sort(key=lambda row: (not row.is_reference, row.policy == CROSSOVER, row.label))
    return PairRow(
        names=_names(first, short),
        key=key[0],
        fabric=first.fabric,
        rows=tuple(rows),
    )


def _names(record: Record, short: Mapping[str, str]) -> str:
    """`resnet20-digits ×2 (tensor-fusion)`; strategies one by one only where they differ."""
    workloads = [job.workload for job in record.jobs]
    strategies = [short[label_of(job)] for job in record.jobs]
    if len(set(strategies)) > 1:
        return " + ".join(f"{job.workload} ({short[label_of(job)]})" for job in record.jobs)
    same = len(set(workloads)) == 1
    return (
        f"{workloads[0]} ×{len(workloads)} ({strategies[0]})" if same else f"{' + '.join(workloads)} ({strategies[0]})"
    )


def _row(
    records: list[Record],
    reference: list[Record],
    bounds: Mapping[int, Prediction | None],
    rng: np.random.Generator,
) -> SharingRow:
    is_reference = records[0].sharing == EXCLUSIVE
    matched = shared_repeats(reference, records)
    gains = {here.repeat: 1.0 if is_reference else _throughput(solo, here) for solo, here in matched}
    predictions = {record.repeat: record.prediction or bounds.get(record.repeat) for record in records}
    bound = {repeat: p.gain for repeat, p in predictions.items() if p is not None and p.gain}
    both = sorted(gains.keys() & bound.keys())
    periods = [p.period_s for p in predictions.values() if p is not None and p.period_s]
    spans = [(solo.makespan_s, here.makespan_s) for solo, here in matched if solo.makespan_s and here.makespan_s]
    return SharingRow(
        cell=records[0].cell,
        label=records[0].cell.rsplit("/", 1)[-1],
        policy=records[0].sharing,
        num_repeats=len(records),
        jobs=_jobs(records, matched, is_reference, rng),
        makespan_s=_over([record.makespan_s for record in records if record.makespan_s], rng),
        throughput=exactly(1.0, len(records)) if is_reference else _over(list(gains.values()), rng),
        makespan_ratio=exactly(1.0, len(records)) if is_reference else _ratio(spans, rng),
        bound=_over(list(bound.values()), rng),
        period_s=_over(periods, rng),
        bound_share=None if is_reference else _ratio([(gains[repeat], bound[repeat]) for repeat in both], rng),
        prediction_source=next((p.source for p in predictions.values() if p is not None), ""),
        is_reference=is_reference,
        record_ids=tuple(record.id for record in records),
    )


def _throughput(solo: Record, here: Record) -> float:
    """Aggregate normalised throughput Σᵢ (solo step time of i / step time of i here)."""
    jobs = zip(solo.jobs, here.jobs, strict=True)
    return sum(step_time_s(alone) / steady_step_time_s(here, shared) for alone, shared in jobs)


def _over(values: Sequence[float], rng: np.random.Generator) -> Interval | None:
    return bootstrap_interval(values, rng) if values else None


def _ratio(quotients: Sequence[tuple[float, float]], rng: np.random.Generator) -> Interval | None:
    if not quotients:
        return None
    above, below = zip(*quotients, strict=True)
    return paired_ratio(above, below, rng)


def _jobs(
    records: list[Record], matched: list[tuple[Record, Record]], is_reference: bool, rng: np.random.Generator
) -> tuple[SharedJobRow, ...]:
    def time_here(record: Record, place: int) -> float:
        job = record.jobs[place]
        return step_time_s(job) if is_reference else steady_step_time_s(record, job)

    return tuple(_job(place, records, matched, time_here, rng) for place in range(len(records[0].jobs)))


def _job(
    place: int,
    records: list[Record],
    matched: list[tuple[Record, Record]],
    time_here: Callable[[Record, int], float],
    rng: np.random.Generator,
) -> SharedJobRow:
    job = records[0].jobs[place]
    solo = [step_time_s(alone.jobs[place]) for alone, _ in matched]
    slowdowns = [(time_here(here, place), t) for (_, here), t in zip(matched, solo, strict=True)]
    return SharedJobRow(
        name=job.name,
        workload=job.workload,
        strategy=label_of(job),
        step_time_s=bootstrap_interval([time_here(record, place) for record in records], rng),
        solo_step_time_s=_over(solo, rng),
        slowdown=_ratio(slowdowns, rng),
        phases=median_phases([record.jobs[place].phases for record in records]),
    )
