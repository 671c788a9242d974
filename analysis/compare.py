"""Two sets of records side by side: what got faster or slower, beyond the noise, on the same machine and fabric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from analysis.cells import fabric_key, is_measured, step_time_s
from analysis.stats import Interval, unpaired_ratio
from analysis.steps.wire_bytes import counted_a_step
from results.record import Record

TOLERANCE = 0.02


class CompareError(ValueError):
    """Records that may not be compared without an explicit word."""


class Change(StrEnum):
    """What a comparison of one cell says."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "within noise"
    OPEN = "too few repeats"
    ONLY_BEFORE = "only before"
    ONLY_AFTER = "only after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One cell: time after over time before (below 1 is faster) and bytes after over bytes before.

    Time is the step time of a one-job cell, the makespan of a shared one. A cell that one side
    lacks, or in which no trial ended well there, is a row of its own and never an error.
    """

    cell: str
    change: Change
    time_ratio: Interval | None = None
    bytes_ratio: float | None = None


def compare(
    before: Iterable[Record],
    after: Iterable[Record],
    *,
    allow_different: bool = False,
    tolerance: float = TOLERANCE,
) -> tuple[Comparison, ...]:
    """Every cell of both sides, in order of name.

    A cell is faster or slower where the 95 % interval of its time ratio lies wholly beyond
    1 ± `tolerance`. Raises: CompareError if machines or a cell's fabrics differ and
    `allow_different` is not set.
    """
    old, new = list(before), list(after)
    if not allow_different:
        _check_same_machine(old, new)
        _check_same_fabrics(old, new)
    first, second = _by_name(filter(is_measured, old)), _by_name(filter(is_measured, new))
    return tuple(
        _comparison(cell, first.get(cell, []), second.get(cell, []), tolerance)
        for cell in sorted(first.keys() | second.keys())
    )


def _by_name(records: Iterable[Record]) -> dict[str, list[Record]]:
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(record.cell, []).append(record)
    return cells


def _comparison(cell: str, old: Sequence[Record], new: Sequence[Record], tolerance: float) -> Comparison:
    if not old or not new:
        return Comparison(cell=cell, change=Change.ONLY_BEFORE if old else Change.ONLY_AFTER)
    ratio = unpaired_ratio(list(map(_time_s, new)), list(map(_time_s, old)))
    return Comparison(cell=cell, change=_change(ratio, tolerance), time_ratio=ratio, bytes_ratio=_bytes_ratio(old, new))


def _change(ratio: Interval, tolerance: float) -> Change:
    if not ratio.has_bounds:
        return Change.OPEN
    if ratio.low > 1.0 + tolerance:
        return Change.SLOWER
    return Change.FASTER if ratio.high < 1.0 - tolerance else Change.SAME


def _time_s(record: Record) -> float:
    if len(record.jobs) > 1 and record.makespan_s:
        return record.makespan_s
    return sum(map(step_time_s, record.jobs))


def _bytes_ratio(old: Sequence[Record], new: Sequence[Record]) -> float | None:
    sent_before, sent_after = (float(np.median(list(map(_sent_bytes, side)))) for side in (old, new))
    return sent_after / sent_before if sent_before > 0 else None


def _sent_bytes(record: Record) -> float:
    return sum(counted_a_step(job) or 0.0 for job in record.jobs)


def _check_same_machine(old: Sequence[Record], new: Sequence[Record]) -> None:
    machines = [{(r.environment.machine, r.environment.num_cores, r.environment.device) for r in s} for s in (old, new)]
    if old and new and machines[0] != machines[1]:
        names = [" and ".join(sorted(f"{m or 'unnamed'} ({c} cores, {d})" for m, c, d in side)) for side in machines]
        raise CompareError(
            f"records of different machines: {names[0]} before, {names[1]} after; "
            "run both sides on one machine, or allow different machines if that is the question"
        )


def _check_same_fabrics(old: Sequence[Record], new: Sequence[Record]) -> None:
    before, after = _by_name(old), _by_name(new)
    for cell in sorted(before.keys() & after.keys()):
        fabrics = [{fabric_key(record.fabric) for record in side[cell]} for side in (before, after)]
        if fabrics[0] != fabrics[1]:
            names = [" and ".join(sorted(f"{key.label}, {key.describe()}" for key in side)) for side in fabrics]
            raise CompareError(
                f"{cell}: different fabrics, {names[0]} before, {names[1]} after; "
                "run both sides on one fabric, or allow different fabrics if that is the question"
            )
