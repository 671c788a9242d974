"""Which methods reach what the dense run reaches, and after how many steps, bytes and seconds.

Over any records with held-out curves: in lockstep, where time is predicted, and of real runs. Per workload, fabric and
number of workers the dense run sets the target: 95 % of its final held-out accuracy where that is above a half, else
the held-out loss after 95 % of its way down from the first training loss. A price is what a repeat had paid at its
first evaluation at or beyond the target, so it is exact to the distance of evaluations. What never gets there costs ∞,
and what diverged ends guessing, at infinite loss.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from analysis.cells import FabricKey, cell_group_of, fabric_key, is_shared, num_workers, samples_per_step
from analysis.naming import method_of, short_names
from analysis.steps.wire_bytes import counted_a_step
from analysis.targets.rows import ACCURACY, LOSS, HeldOutCurve, HeldOutEnd, Price, Spread, TargetRow, TargetStudy
from analysis.wording import number, percent, plural
from results.facts import Role
from results.record import CurvePoint, JobResult, Record, Status

SHARE = 0.95
ACCURATE = 0.5  # above it accuracy is the metric; language models guess too few tokens for that
CHANCE = 0.1  # accuracy of guessing one of ten classes, as many as the digits have
FEWEST_POINTS = 3
BATCH = "batch"  # the axis on which a suite compares sizes of batches
FULL_SIZE_SHARE = 0.75
Cell = Sequence[Record]
Key = tuple[str, str, str, FabricKey, int, str]


@dataclass(frozen=True, slots=True)
class _Goal:
    metric: str
    value: float

    def is_met(self, point: CurvePoint) -> bool:
        if self.metric == LOSS:
            return point.loss <= self.value
        return point.accuracy is not None and point.accuracy >= self.value


def target_studies(cells: Iterable[Cell]) -> tuple[TargetStudy, ...]:
    """Every setting with a dense run and another method, all evaluated while they trained."""
    settings: dict[Key, list[Cell]] = {}
    for records in cells:
        if (curved := next(filter(_is_evaluated, records), None)) is not None:
            settings.setdefault(_key(curved), []).append(records)
    found = (_study(key, own) for key, own in settings.items())
    return tuple(sorted((s for s in found if s), key=lambda s: (s.suite, s.workload, s.num_workers, s.where)))


def _is_evaluated(record: Record) -> bool:
    """Whether it trained to its end and was evaluated on the way, diverged or not."""
    if not record.jobs or is_shared(record) or record.status not in (Status.OK, Status.DIVERGED):
        return False
    return len(_held_out(record)) >= FEWEST_POINTS


def _can_be_judged(record: Record) -> bool:
    return record.status is Status.OK and _is_evaluated(record)


def _held_out(record: Record) -> list[CurvePoint]:
    return [point for point in record.jobs[0].curve if point.accuracy is not None]


def _key(record: Record) -> Key:
    job = record.jobs[0]
    samples = samples_per_step(job, num_workers(record, job))
    return record.suite, job.workload, job.device, fabric_key(record.fabric), samples, _workers(record)


def _workers(record: Record) -> str:
    """What the cell calls its place where workers are unequal by design, or batches are compared; empty elsewhere."""
    return record.cell.partition("/")[0] if record.axis == BATCH else cell_group_of(record)


def _study(key: Key, cells: Sequence[Cell]) -> TargetStudy | None:
    dense = _dense(cells)
    judged_by = [record for record in dense or () if _can_be_judged(record)]
    goal = _goal(judged_by) if judged_by and len(cells) > 1 else None
    if goal is None:
        return None
    first = judged_by[0]
    names = _names(cells)
    rows = [_row(own, name, goal, is_dense=own is dense) for own, name in zip(cells, names, strict=True)]
    dense_row = next(row for row in rows if row.is_dense)
    rows = [replace(row, falls_short=_shortfall(row, dense_row, goal.metric)) for row in rows]
    return TargetStudy(
        suite=key[0],
        workload=key[1],
        where=_where(key, first),
        evidence=first.fabric.label,
        num_workers=num_workers(first, first.jobs[0]),
        metric=goal.metric,
        target=goal.value,
        rule=_rule(goal),
        rows=(dense_row, *(row for row in rows if not row.is_dense)),
        batch_size=key[4],
    )


def _where(key: Key, record: Record) -> str:
    place = key[3].describe()
    ranks = place.replace("host", "rank") if record.fabric.label == "lockstep" else place
    return f"{ranks}, {key[5]}" if key[5] else ranks


def _dense(cells: Sequence[Cell]) -> Cell | None:
    """What the suite calls dense; else, of those that send the most bytes per step, the one that ends best."""
    named = [records for records in cells if _role(records) is Role.DENSE]
    if named:
        return named[0]
    sent = [max((counted_a_step(record.jobs[0]) or 0.0) for record in records if record.jobs) for records in cells]
    full = [own for own, size in zip(cells, sent, strict=True) if size >= FULL_SIZE_SHARE * max(sent)]
    return min(full, key=_final_loss, default=None)


def _role(records: Cell) -> Role:
    return next((record.jobs[0].role for record in records if record.jobs), Role.METHOD)


def _final_loss(records: Cell) -> float:
    ends = [_held_out(record)[-1].loss for record in records if _can_be_judged(record)]
    return statistics.fmean(ends) if ends else math.inf


def _goal(dense: Sequence[Record]) -> _Goal | None:
    """The target that these repeats set; None where they learnt nothing."""
    ends = [_held_out(record)[-1] for record in dense]
    accuracy = statistics.fmean(point.accuracy or 0.0 for point in ends)
    if accuracy > ACCURATE:
        return _Goal(ACCURACY, SHARE * accuracy)
    starts = [point.loss for record in dense for point in record.jobs[0].curve[:1] if point.accuracy is None]
    last = statistics.fmean(point.loss for point in ends)
    if not starts or not math.isfinite(last) or statistics.fmean(starts) <= last:
        return None
    start = statistics.fmean(starts)
    return _Goal(LOSS, start - SHARE * (start - last))


def _rule(goal: _Goal) -> str:
    share = percent(SHARE)
    if goal.metric == ACCURACY:
        return f"held-out accuracy {number(goal.value)}, {share} of the dense run's"
    return f"held-out loss {number(goal.value)}, after {share} of the dense run's way down"


def _names(cells: Sequence[Cell]) -> list[str]:
    tails = [records[0].cell.split("/", 2)[-1] for records in cells]
    short = short_names(method_of(next(record.jobs[0] for record in records if record.jobs)) for records in cells)
    return [short.get(tail, tail) for tail in tails]


def _row(records: Cell, name: str, goal: _Goal, *, is_dense: bool) -> TargetRow:
    ended = [record for record in records if _can_be_judged(record)]
    diverged = [record for record in records if record.status is Status.DIVERGED]
    ends, job = [_held_out(record)[-1] for record in ended], next(r.jobs[0] for r in records if r.jobs)
    accuracies = Spread.of([point.accuracy for point in ends if point.accuracy is not None])
    losses = Spread.of([point.loss for point in ends])
    return TargetRow(
        name=name,
        strategy=str(method_of(job)),
        optimizer=_optimizer([*ended, *diverged]),
        final=accuracies if goal.metric == ACCURACY else losses,
        final_accuracy=accuracies,
        final_loss=losses,
        prices=(*(_price(record, goal) for record in ended), *map(_never, diverged)),
        course=_course([_held_out(record) for record in ended], goal.metric, has_clock=_has_clock(job)),
        clock=job.clock if _has_clock(job) else "none",
        num_diverged=len(diverged),
        is_dense=is_dense,
        role=job.role,
        ends=(
            *(
                HeldOutEnd(repeat=record.repeat, accuracy=end.accuracy or 0.0, loss=end.loss)
                for record, end in zip(ended, ends, strict=True)
            ),
            *(HeldOutEnd(repeat=record.repeat, accuracy=CHANCE, loss=math.inf) for record in diverged),
        ),
        record_ids=tuple(record.id for record in (*ended, *diverged)),
    )


def _final(point: CurvePoint, metric: str) -> float:
    return point.loss if metric == LOSS else point.accuracy or 0.0


def _optimizer(records: Cell) -> str:
    jobs = records[0].trial.get("jobs", ()) if records else ()
    return str(jobs[0].get("optimizer", "")) if jobs else ""


def _never(record: Record) -> Price:
    return Price(repeat=record.repeat, steps=math.inf, num_bytes=math.inf, time_s=math.inf)


def _price(record: Record, goal: _Goal) -> Price:
    job = record.jobs[0]
    point = next((point for point in _held_out(record) if goal.is_met(point)), None)
    each = counted_a_step(job)
    if point is None:
        return Price(
            repeat=record.repeat,
            steps=math.inf,
            num_bytes=None if each is None else math.inf,
            time_s=math.inf if _has_clock(job) else None,
        )
    by_mean = None if each is None else each * point.step
    sent = by_mean if point.sent_bytes is None else point.sent_bytes
    time_s = point.time_s if _has_clock(job) else None
    return Price(repeat=record.repeat, steps=point.step, num_bytes=sent, time_s=time_s)


def _has_clock(job: JobResult) -> bool:
    """Whether the times of its curve are known: a predicted step is of one kind, and a warm-up's are of another."""
    warms_up = job.code is not None and max(job.code.dense_steps, job.code.ramp_steps) > 0
    return job.clock != "none" and not (job.clock == "predicted" and warms_up)


def _course(repeats: Sequence[Sequence[CurvePoint]], metric: str, *, has_clock: bool) -> HeldOutCurve | None:
    by_step = [{point.step: point for point in repeat} for repeat in repeats]
    steps = sorted(set.intersection(*(set(points) for points in by_step))) if by_step else []
    if not steps:
        return None
    columns = [[points[step] for points in by_step] for step in steps]
    values = [[_final(point, metric) for point in column] for column in columns]
    times = [[p.time_s for p in column if p.time_s is not None] for column in columns]
    timed = has_clock and all(len(own) == len(column) for own, column in zip(times, columns, strict=True))
    return HeldOutCurve(
        steps=tuple(steps),
        mean=tuple(map(statistics.fmean, values)),
        low=tuple(map(min, values)),
        high=tuple(map(max, values)),
        times_s=tuple(map(statistics.median, times)) if timed else (),
    )


def _shortfall(row: TargetRow, dense: TargetRow, metric: str) -> float | None:
    """By how much its final value is worse than the dense run's; below 0 it is better."""
    if row.final is None or dense.final is None:
        return None
    gap = dense.final.mean - row.final.mean
    return gap if metric == ACCURACY else -gap


def judged(study: TargetStudy, row: TargetRow) -> str:
    """One method's verdict in words."""
    count = len(row.prices)
    repeats = f"{row.num_reached} of {plural(count, 'repeat')}"
    diverged = f", {row.num_diverged} diverged" if row.num_diverged else ""
    end = "" if row.falls_short is None or row.is_dense else f"; ends {_gap(row.falls_short, study.metric)}"
    if not row.reaches:
        return f"not reached ({repeats}{diverged}){end}"
    return f"reached ({repeats}){end}"


def _gap(shortfall: float, metric: str) -> str:
    size = f"{number(100 * abs(shortfall), 2)} points" if metric == ACCURACY else number(abs(shortfall), 2)
    return f"{size} {'worse' if shortfall > 0 else 'better'} than dense"
