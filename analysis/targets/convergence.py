"""Training curves over repeats, and the time to a target loss, the first metric of convergence.

A record's curve holds two kinds of points. Those with an accuracy are held-out: taken by evaluation.
Those without are the loss of the batch just trained on, at every step. They are never mixed. A
batch's loss is noisy, so training curves are trailing means over `WINDOW` steps.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

from analysis.rows import CurveRow
from results.record import CurvePoint, Record, Status

TARGET_SHARE = 0.9
WINDOW = 5
Curve = Sequence[CurvePoint]


def training_curves(records: Iterable[Record]) -> list[Curve]:
    """The first job's training loss in each record that has one, smoothed."""
    found = ([point for point in curve if point.accuracy is None] for curve in _curves(records))
    return [smoothed(curve) for curve in found if curve]


def held_out_curves(records: Iterable[Record]) -> list[Curve]:
    """The first job's held-out points in each record that has some."""
    found = ([point for point in curve if point.accuracy is not None] for curve in _curves(records))
    return [curve for curve in found if curve]


def _curves(records: Iterable[Record]) -> list[Curve]:
    return [record.jobs[0].curve for record in records if record.jobs]


def smoothed(curve: Curve, window: int = WINDOW) -> Curve:
    """Each point's loss as the mean of the last `window` points up to it, fewer at the start."""
    losses = [point.loss for point in curve]
    means = [statistics.fmean(losses[max(0, end - window) : end]) for end in range(1, len(losses) + 1)]
    return [dataclasses.replace(point, loss=mean) for point, mean in zip(curve, means, strict=True)]


def median_curve(repeats: Sequence[Curve]) -> CurveRow | None:
    """Medians and ranges at the steps that all repeats reached; None where there are none."""
    by_step = [{point.step: point for point in repeat} for repeat in repeats]
    steps = sorted(set.intersection(*(set(points) for points in by_step))) if by_step else []
    if not steps:
        return None
    columns = [[points[step] for points in by_step] for step in steps]
    losses = [[point.loss for point in column] for column in columns]
    return CurveRow(
        step=tuple(steps),
        time_s=tuple(statistics.median(map(seconds, column)) for column in columns),
        loss=tuple(map(statistics.median, losses)),
        loss_low=tuple(map(min, losses)),
        loss_high=tuple(map(max, losses)),
        **_accuracies(columns),
    )


def seconds(point: CurvePoint) -> float:
    """The time of a point on a curve that was timed, as those of every measured record are."""
    return math.nan if point.time_s is None else point.time_s


def _accuracies(columns: Sequence[Sequence[CurvePoint]]) -> dict[str, tuple[float, ...]]:
    values = [[point.accuracy for point in column if point.accuracy is not None] for column in columns]
    if not all(len(value) == len(column) for value, column in zip(values, columns, strict=True)):
        return {}
    return {
        "accuracy": tuple(map(statistics.median, values)),
        "accuracy_low": tuple(map(min, values)),
        "accuracy_high": tuple(map(max, values)),
    }


def target_loss(baseline: Sequence[Curve], share: float = TARGET_SHARE) -> float | None:
    """The training loss at which the baseline has made `share` of its own progress; None if it made none."""
    row = median_curve(baseline)
    if row is None or len(row.loss) < 2:
        return None
    first, last = row.loss[0], min(row.loss)
    target = first - share * (first - last)
    return target if math.isfinite(target) and target < first else None


def time_to_loss_s(curve: Curve, target: float) -> float:
    """Training seconds until the curve first stands at or below `target`; ∞ if it never does."""
    return next((seconds(point) for point in curve if point.loss <= target), math.inf)


def times_to_loss_s(records: Sequence[Record], target: float) -> list[float]:
    """One time per repeat; a diverged repeat counts as ∞, so that no failure makes a method look faster."""
    diverged = sum(record.status is Status.DIVERGED for record in records)
    ended = [record for record in records if record.status is Status.OK]
    return [time_to_loss_s(curve, target) for curve in training_curves(ended)] + [math.inf] * diverged
