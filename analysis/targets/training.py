"""Rows of the cells with one job: throughput, speed-up over the baseline, phases, bytes, convergence."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from analysis import naming
from analysis.cells import (
    LOCAL,
    VIRTUAL,
    ComputeKind,
    SettingKey,
    fabric_key,
    group_of,
    is_measured,
    is_shared,
    num_workers,
    samples_per_s,
    setting_key,
    shared_repeats,
    step_time_s,
)
from analysis.rows import CellRow, SettingRow
from analysis.stats import Interval, computed, median_interval, paired_ratio
from analysis.targets import convergence
from results.facts import Role
from results.record import UNUSED, JobResult, Phases, Record, Status

FULL_SIZE_SHARE = 0.75
Cells = Sequence[Sequence[Record]]


@dataclass(frozen=True, slots=True)
class Baseline:
    """What ratios are taken against: the fastest cell of this system and, if given, this strategy.

    Where none is named, or a setting has none, the fastest cell that its suite calls dense takes its place, or else the
    fastest that sends all bytes (no compression).
    """

    system: str = ""
    strategy: str | None = None

    def matches(self, row: CellRow) -> bool:
        """Whether `row` is this baseline."""
        return row.system == self.system and self.strategy in (None, row.strategy, row.label)


def settings(cells: Cells, baseline: Baseline) -> tuple[SettingRow, ...]:
    """Every setting that has at least one measured competitor."""
    competitors: dict[SettingKey, list[Sequence[Record]]] = {}
    ideals: list[Sequence[Record]] = []
    for records in cells:
        first = next(iter(_measured(records)), None)
        if first is None or is_shared(first):
            continue
        if first.jobs[0].system == LOCAL:
            ideals.append(records)
        else:
            competitors.setdefault(setting_key(first), []).append(records)
    rows = [_setting(key, group, _ideals_for(key, ideals), baseline) for key, group in competitors.items()]
    return tuple(_named(sorted(rows, key=lambda row: (row.key.group.value, row.key.workload, row.title))))


def full_size(rows: Iterable[CellRow]) -> tuple[CellRow, ...]:
    """The competitors that put about as many bytes on the wire as the largest one: nothing was compressed.

    Judged by bytes and not by names, so that it also holds for systems that only interface counters see.
    """
    competitors = [row for row in rows if not row.is_ideal]
    largest = max((row.sent_bytes or 0.0 for row in competitors), default=0.0)
    return tuple(row for row in competitors if row.sent_bytes is None or row.sent_bytes >= FULL_SIZE_SHARE * largest)


def _ideals_for(key: SettingKey, ideals: Cells) -> Cells:
    """The line without communication belongs to a workload; it may have run on one host, so its fabric may differ."""
    wanted = (key.workload, key.device, key.batch_size)
    fitting = [records for records in ideals if _compute(records) == wanted]
    nearest = [records for records in fitting if fabric_key(records[0].fabric) == key.fabric]
    return nearest or fitting


def _compute(records: Sequence[Record]) -> tuple[str, str, int]:
    job = _measured(records)[0].jobs[0]
    return job.workload, job.device, job.batch_size


def _setting(key: SettingKey, competitors: Cells, ideals: Cells, baseline: Baseline) -> SettingRow:
    first = _measured(competitors[0])[0]
    workers = num_workers(first, first.jobs[0])
    cells = [*competitors, *ideals]
    rows = [_cell(records, workers) for records in cells]
    place = _choose(rows, baseline)
    learns = key.group is not ComputeKind.REPLAY
    target = convergence.target_loss(convergence.training_curves(_measured(cells[place]))) if learns else None
    rows = [
        replace(
            row,
            is_baseline=number == place,
            speedup=_speedup(_measured(cells[place]), _measured(records), workers),
            time_to_target_s=_time_to_target(records, target),
            target_speedup=_target_speedup(_measured(cells[place]), records, target),
        )
        for number, (row, records) in enumerate(zip(rows, cells, strict=True))
    ]
    return SettingRow(
        key=key,
        fabric=first.fabric,
        num_workers=workers,
        cells=tuple(sorted(rows, key=lambda row: (row.is_ideal, -row.samples_per_s.median))),
        baseline=rows[place].label,
        target_loss=target,
    )


def _named(settings: Sequence[SettingRow]) -> list[SettingRow]:
    """Short names made over all settings, so that a system has one name in every table and figure.

    Sizes in them are what they stand for, as in tables of step times; labels keep those that were run.
    """
    real = [[row.method.in_real_sizes(setting.fabric.size_scale) for row in setting.cells] for setting in settings]
    everything = list(itertools.chain(*real))
    short = naming.short_names(everything)
    return [
        replace(
            setting,
            cells=tuple(
                replace(row, name=short[text] if texts.count(text) == 1 else _told_apart(row, setting))
                for row, text in zip(setting.cells, texts, strict=True)
            ),
            left_out=naming.left_out(methods, everything),
        )
        for setting, methods in zip(settings, real, strict=True)
        for texts in [list(map(str, methods))]
    ]


def _told_apart(row: CellRow, setting: SettingRow) -> str:
    """Two sizes that agree to three figures keep their labels; one method in several plans is named as its cell is."""
    same = sum(other.label == row.label for other in setting.cells)
    return row.label if same == 1 else row.cell.rpartition("/")[2]


def _choose(rows: Sequence[CellRow], baseline: Baseline) -> int:
    """The place of the row that ratios are taken against."""
    named = [row for row in rows if baseline.matches(row)]
    dense = [row for row in rows if row.role is Role.DENSE]
    chosen = max(named or dense or full_size(rows), key=lambda row: row.samples_per_s.median)
    return next(place for place, row in enumerate(rows) if row is chosen)


def _measured(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if is_measured(record)]


def _cell(records: Sequence[Record], workers: int) -> CellRow:
    measured = _measured(records)
    jobs = [record.jobs[0] for record in measured]
    job = jobs[0]
    own_workers = num_workers(measured[0], job)
    counted = workers if job.system == LOCAL else own_workers

    def over(value: Callable[[JobResult], float]) -> Interval:
        return median_interval([value(job) for job in jobs])

    # Replayed layers compute nothing, so their losses say nothing.
    learning = [record for record in measured if group_of(record) is not ComputeKind.REPLAY]
    training, held_out = convergence.training_curves(learning), convergence.held_out_curves(learning)
    method = naming.method_of(job)
    return CellRow(
        cell=measured[0].cell,
        label=str(method),
        method=method,
        name=str(method),
        system=job.system,
        strategy=job.strategy,
        num_workers=own_workers,
        num_repeats=len(jobs),
        num_parameters=job.num_parameters,
        role=job.role,
        clock=job.clock,
        step_time_s=over(step_time_s),
        step_p50_s=over(lambda job: float(np.quantile(job.step_times_s(), 0.5))),
        step_p90_s=over(lambda job: float(np.quantile(job.step_times_s(), 0.9))),
        samples_per_s=over(lambda job: samples_per_s(job, counted)),
        unused=next((job.notes[UNUSED] for job in jobs if UNUSED in job.notes), ""),
        phases=median_phases([visible_phases(job) for job in jobs]),
        num_messages=_median([job.num_messages for job in jobs]),
        num_control_rounds=_median([job.num_control_rounds for job in jobs]),
        wire_bytes=_median_bytes([job.wire_bytes for job in jobs]),
        interface_bytes=_median([job.interface_bytes for job in jobs]),
        peak_memory_bytes=max(job.peak_memory_bytes for job in jobs),
        final_loss=median_interval([curve[-1].loss for curve in held_out]) if _finite(held_out) else None,
        final_accuracy=_final_accuracy(held_out),
        repeat_samples_per_s=tuple(samples_per_s(job, counted) for job in jobs),
        steps_s=tuple(step for job in jobs for step in job.step_times_s()),
        training=convergence.median_curve(training),
        held_out=convergence.median_curve(held_out),
        record_ids=tuple(record.id for record in measured),
    )


def _finite(curves: Sequence[convergence.Curve]) -> bool:
    return bool(curves) and all(curve[-1].loss == curve[-1].loss for curve in curves)


def _final_accuracy(curves: Sequence[convergence.Curve]) -> Interval | None:
    values = [curve[-1].accuracy for curve in curves]
    known = [value for value in values if value is not None]
    return median_interval(known) if known and len(known) == len(values) else None


def _speedup(base: Sequence[Record], own: Sequence[Record], workers: int) -> Interval | None:
    """This one's throughput over the baseline's, repeat by repeat; exactly 1 for the baseline itself. A virtual clock
    says the same every time."""
    pairs = shared_repeats(base, own)
    if not pairs:
        return None
    paces = [(samples_per_s(b.jobs[0], workers), samples_per_s(a.jobs[0], workers)) for a, b in pairs]
    ratio = paired_ratio([own for own, _ in paces], [base for _, base in paces])
    is_virtual = all(record.jobs[0].clock == VIRTUAL for pair in pairs for record in pair)
    return computed(ratio) if is_virtual else ratio


def _time_to_target(records: Sequence[Record], target: float | None) -> Interval | None:
    times = convergence.times_to_loss_s(records, target) if target is not None else []
    return median_interval(times) if times else None


def _target_speedup(base: Sequence[Record], own: Sequence[Record], target: float | None) -> Interval | None:
    """The baseline's time to target over this one's, repeat by repeat: 0 where this one did not get there."""
    pairs = shared_repeats(base, _measured(own)) if target is not None else []
    if target is None or not pairs:
        return None
    before, after = (convergence.times_to_loss_s(records, target) for records in zip(*pairs, strict=True))
    ratios = [a / b if math.isfinite(b) else 0.0 for a, b in zip(before, after, strict=True)]
    return median_interval(ratios + [0.0] * sum(record.status is Status.DIVERGED for record in own))


def visible_phases(job: JobResult) -> Phases:
    """The job's phases, without compute where waiting for messages hides in it.

    A whole system may wait for its messages inside `backward` or `step`; where it does not show
    how long, its compute cannot be told from that wait either.
    """
    hidden = job.system != LOCAL and job.phases.exposed_s is None
    return replace(job.phases, compute_s=None) if hidden else job.phases


def median_phases(phases: Sequence[Phases]) -> Phases:
    """Field-wise medians over repeats; None where any repeat could not see the phase."""
    return Phases(**{field.name: _median([getattr(phase, field.name) for phase in phases]) for field in fields(Phases)})


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known and len(known) == len(values) else None


def _median_bytes(counts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    tags = sorted({tag for count in counts for tag in count})
    return {tag: statistics.median(count.get(tag, 0.0) for count in counts) for tag in tags}
