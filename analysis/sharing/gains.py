"""Rows of the cells whose jobs share devices: gain over running one after the other, beside its bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from analysis.cells import VIRTUAL, fabric_key, is_measured, is_shared, shared_repeats, step_time_s
from analysis.naming import Method, method_of, short_names
from analysis.sharing.limits import Pair, fifo_bound, fifo_share, limit_share, pair_key
from analysis.sharing.metrics import (
    exposed_share,
    jain_index,
    p99_ratio,
    phase_range,
    rival_row,
    turn_facts,
    weights_against,
)
from analysis.sharing.rows import CROSSOVER, EXCLUSIVE, Paired, PairRow, SharedJobRow, SharingRow
from analysis.sharing.steady import steady_step_time_s, steps_here_s, time_here_s
from analysis.stats import Interval, computed, exactly, median_interval, paired_ratio
from analysis.targets.training import median_phases
from results.record import Record, SharingFacts


def pairs(cells: Sequence[Sequence[Record]]) -> tuple[PairRow, ...]:
    """Cells whose jobs share devices, grouped by what the jobs are and where they ran, policies beside each other."""
    groups: dict[tuple[str, Pair], list[list[Record]]] = {}
    for records in cells:
        measured = [record for record in records if is_measured(record) and is_shared(record)]
        if measured:
            groups.setdefault((measured[0].suite, pair_key(measured[0])), []).append(measured)
    alike: dict[object, list[Method]] = {}
    for group in groups.values():
        alike.setdefault(_place(group[0][0]), []).extend(_methods(group[0][0]))
    short = {place: short_names(methods) for place, methods in alike.items()}
    rows = []
    for (_, key), group in groups.items():
        row = _pair_row(key, group, short[_place(group[0][0])])
        rows.append(replace(row, rival=rival_row(row, group[0][0], cells)))
    return tuple(sorted(_told_apart(rows), key=lambda row: (row.title, row.group, row.axis, row.at or 0.0)))


def _pair_row(key: Pair, cells: list[list[Record]], short: Mapping[str, str]) -> PairRow:
    fabric, group, work, axis, at = key
    first = cells[0][0]
    reference = next((records for records in cells if records[0].sharing == EXCLUSIVE), [])
    rows = [_row(records, reference) for records in cells]
    rows.sort(key=lambda row: (not row.is_reference, row.policy == CROSSOVER, row.label))
    return PairRow(
        names=_names(first, short),
        key=fabric,
        fabric=first.fabric,
        rows=tuple(rows),
        suite=first.suite,
        group=group if at is None else group.removesuffix(f"-{at:g}"),
        work=work,
        strategy=", ".join(dict.fromkeys(short[str(method)] for method in _methods(first))),
        axis=axis,
        at=at,
        phases=phase_range(rows),
    )


def _told_apart(rows: Sequence[PairRow]) -> list[PairRow]:
    """Pairs that lie on no sweep and would have the same title are led by their group."""
    titles = Counter(row.title for row in rows if not row.axis)
    return [
        replace(row, names=f"{row.group}: {row.names}") if not row.axis and titles[row.title] > 1 else row
        for row in rows
    ]


def _place(record: Record) -> object:
    """Within what strategies have to be told apart by name: the same work on the same fabric."""
    return fabric_key(record.fabric), tuple((job.workload, job.batch_size) for job in record.jobs)


def _methods(record: Record) -> list[Method]:
    """What its jobs ran, with sizes as what they stand for."""
    return [method_of(job).in_real_sizes(record.fabric.size_scale) for job in record.jobs]


def _names(record: Record, short: Mapping[str, str]) -> str:
    """`resnet20-digits ×2 (tensor-fusion)`; strategies one by one only where they differ."""
    workloads = [job.workload for job in record.jobs]
    strategies = [short[str(method)] for method in _methods(record)]
    if len(set(strategies)) > 1:
        return " + ".join(f"{own} ({strategy})" for own, strategy in zip(workloads, strategies, strict=True))
    same = len(set(workloads)) == 1
    return (
        f"{workloads[0]} ×{len(workloads)} ({strategies[0]})" if same else f"{' + '.join(workloads)} ({strategies[0]})"
    )


def _row(records: list[Record], reference: list[Record]) -> SharingRow:
    is_reference = records[0].sharing == EXCLUSIVE
    matched = shared_repeats(reference, records)
    gains = [1.0 if is_reference else _throughput(solo, here) for solo, here in matched]
    bounds = [bound for solo, here in matched if (bound := fifo_bound(solo, here)) is not None]
    spans = [(solo.makespan_s, here.makespan_s) for solo, here in matched if solo.makespan_s and here.makespan_s]
    row = SharingRow(
        cell=records[0].cell,
        label=records[0].cell.rsplit("/", 1)[-1],
        policy=records[0].sharing,
        num_repeats=len(matched) or len(records),
        jobs=_jobs(records, matched, is_reference),
        makespan_s=_over([record.makespan_s for record in records if record.makespan_s]),
        throughput=exactly(1.0, len(records)) if is_reference else _over(gains),
        makespan_ratio=exactly(1.0, len(records)) if is_reference else _ratio(spans),
        bound=_over([bound.gain for bound in bounds]),
        period_s=_over([bound.period_s for bound in bounds]),
        prediction_source=next((solo.prediction.source for solo, _ in matched if solo.prediction is not None), ""),
        is_reference=is_reference,
        record_ids=tuple(record.id for record in records),
        link=records[0].link,
        axis=records[0].axis,
        at=records[0].at,
        systems=tuple(sorted({job.system for job in records[0].jobs})),
        paired=tuple(_paired(solo, here) for solo, here in matched),
    )
    row = _with_metrics(row, matched, [record.sharing_facts for record in records if record.sharing_facts])
    return _computed(row) if all(job.clock == VIRTUAL for job in records[0].jobs) else row


def _computed(row: SharingRow) -> SharingRow:
    """The row of a virtual clock, whose gains are no sample."""

    def own(found: Interval | None) -> Interval | None:
        return None if found is None else computed(found)

    return replace(
        row,
        throughput=own(row.throughput),
        makespan_s=own(row.makespan_s),
        makespan_ratio=own(row.makespan_ratio),
        bound_share=own(row.bound_share),
        limit_share=own(row.limit_share),
    )


def _paired(solo: Record, here: Record) -> Paired:
    bound = fifo_bound(solo, here)
    return Paired(
        repeat=here.repeat,
        solo_s=tuple(map(step_time_s, solo.jobs)),
        here_s=tuple(time_here_s(here, job) for job in here.jobs),
        bound=None if bound is None else bound.gain,
        fifo_share=fifo_share(solo, here),
        limit_share=limit_share(solo, here),
    )


def _with_metrics(
    row: SharingRow, matched: Sequence[tuple[Record, Record]], facts: Sequence[SharingFacts]
) -> SharingRow:
    """The row with all that goes beyond gain and bound; turns need no repeat alone to be told."""
    fifo = [one.fifo_share for one in row.paired if one.fifo_share is not None]
    limits = [(one.gain, one.limit_share) for one in row.paired if one.limit_share is not None]
    jobs = (
        replace(
            job,
            p99_ratio=p99_ratio(place, matched, steps_here_s),
            exposed_share=exposed_share(solo.jobs[place] for solo, _ in matched),
        )
        for place, job in enumerate(row.jobs)
    )
    same, compared = (0, 0) if row.is_reference else weights_against(matched)
    return replace(
        row,
        jobs=tuple(jobs),
        bound_share=None if row.is_reference else _over(fifo),
        limit=None if row.is_reference else _over([gain / share for gain, share in limits]),
        limit_share=None if row.is_reference else _over([share for _, share in limits]),
        jain=_over([jain_index(one) for one in row.paired]),
        turns=turn_facts(facts),
        weights_equal=same,
        weights_compared=compared,
    )


def _throughput(solo: Record, here: Record) -> float:
    """Aggregate normalised throughput Σᵢ (solo step time of i / step time of i here)."""
    jobs = zip(solo.jobs, here.jobs, strict=True)
    return sum(step_time_s(alone) / steady_step_time_s(here, shared) for alone, shared in jobs)


def _over(values: Sequence[float]) -> Interval | None:
    return median_interval(values) if values else None


def _ratio(quotients: Iterable[tuple[float, float]]) -> Interval | None:
    known = list(quotients)
    if not known:
        return None
    above, below = zip(*known, strict=True)
    return paired_ratio(above, below)


def _jobs(records: list[Record], matched: list[tuple[Record, Record]], is_reference: bool) -> tuple[SharedJobRow, ...]:
    def time_here(record: Record, place: int) -> float:
        job = record.jobs[place]
        return step_time_s(job) if is_reference else steady_step_time_s(record, job)

    return tuple(_job(place, records, matched, time_here) for place in range(len(records[0].jobs)))


def _job(
    place: int,
    records: list[Record],
    matched: list[tuple[Record, Record]],
    time_here: Callable[[Record, int], float],
) -> SharedJobRow:
    job = records[0].jobs[place]
    solo = [step_time_s(alone.jobs[place]) for alone, _ in matched]
    slowdowns = [(time_here(here, place), t) for (_, here), t in zip(matched, solo, strict=True)]
    return SharedJobRow(
        name=job.name,
        workload=job.workload,
        strategy=str(method_of(job)),
        step_time_s=median_interval([time_here(record, place) for record in records]),
        solo_step_time_s=_over(solo),
        slowdown=_ratio(slowdowns),
        phases=median_phases([record.jobs[place].phases for record in records]),
        num_messages=job.num_messages,
    )
