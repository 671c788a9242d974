"""Two sets of records side by side: what got faster or slower, beyond the noise, on the same machine and fabric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np

from analysis.cells import MEASURED, VIRTUAL, fabric_key, is_measured, step_time_s
from analysis.stats import Interval, exactly, unpaired_ratio
from analysis.steps.wire_bytes import counted_a_step
from results.record import Record

TOLERANCE = 0.02
PATH_TOLERANCE = 0.10  # of hot paths: where a process puts its memory alone moves one by some per cent
HOT_PATHS = "hot paths"
Cell = tuple[str, str]  # its suite and its name
Machine = tuple[str, int, str]  # its name, cores and device


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

    suite: str
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
    """Every cell of both sides, in order of suite and name.

    A cell is faster or slower where the 95 % interval of its time ratio lies wholly beyond
    1 ± `tolerance`; fewer repeats than such an interval needs decide nothing, unless a virtual clock says the same
    every time. Raises: CompareError if machines, or a cell's fabrics or work, differ and `allow_different` is not set.
    """
    old, new = list(before), list(after)
    if not allow_different:
        _check_same_machine(old, new)
        _check_same_fabrics(old, new)
        _check_same_work(old, new)
    first, second = _by_cell(filter(is_measured, old)), _by_cell(filter(is_measured, new))
    return tuple(
        _comparison(cell, first.get(cell, []), second.get(cell, []), tolerance)
        for cell in sorted(first.keys() | second.keys())
    )


def read_hot_paths(folder: Path) -> tuple[dict[Cell, list[float]], set[Machine]]:
    """Median seconds of every benchmark in each file that pytest-benchmark wrote to `folder`, and their machines; none
    where it holds other files. Raises: CompareError for a run of benchmarks that lacks something."""
    found: dict[Cell, list[float]] = {}
    machines = set[Machine]()
    for path in sorted(folder.glob("*.json")):
        try:
            run = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}, set()  # who reads records says what is wrong with it
        if not isinstance(run, dict) or "benchmarks" not in run:
            return {}, set()
        try:
            own = run["machine_info"]
            machines.add((f"{own['cpu'].get('brand_raw')}, {own['release']}", own["cpu"].get("count", 0), "cpu"))
            for one in run["benchmarks"]:
                found.setdefault((HOT_PATHS, one["name"]), []).append(float(one["stats"]["median"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CompareError(
                f"{path} is no whole run of benchmarks ({error!r}); delete it, and time again"
            ) from error
    return found, machines


def compare_hot_paths(before: Path, after: Path, *, allow_different: bool = False) -> tuple[Comparison, ...]:
    """As `compare`, of folders that `scripts.hot_paths` wrote; empty where neither is one."""
    (old, one), (new, other) = read_hot_paths(before), read_hot_paths(after)
    if old and new and one != other and not allow_different:
        raise _different_machines(one, other)
    found = []
    for cell in sorted(old.keys() | new.keys()):
        sides = old.get(cell), new.get(cell)
        if sides[0] is None or sides[1] is None:
            change, ratio = Change.ONLY_BEFORE if sides[0] else Change.ONLY_AFTER, None
        else:
            ratio = unpaired_ratio(sides[1], sides[0])
            change = _change(ratio, PATH_TOLERANCE)
        found.append(Comparison(suite=cell[0], cell=cell[1], change=change, time_ratio=ratio))
    return tuple(found)


def check_one_machine(records: Iterable[Record]) -> None:
    """Raises: CompareError if repeats of one cell were timed on different machines."""
    for (suite, cell), own in _by_cell(records).items():
        machines = set(map(_machine, filter(_is_timed, own)))
        if len(machines) > 1:
            raise CompareError(
                f"{suite}, {cell}: records of different machines, {_named(machines)}; "
                "name folders of one machine, or allow different machines if that is the question (--allow-different)"
            )


def _by_cell(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    cells: dict[Cell, list[Record]] = {}
    for record in records:
        cells.setdefault((record.suite, record.cell), []).append(record)
    return cells


def _comparison(of: Cell, old: Sequence[Record], new: Sequence[Record], tolerance: float) -> Comparison:
    suite, cell = of
    if not old or not new:
        return Comparison(suite=suite, cell=cell, change=Change.ONLY_BEFORE if old else Change.ONLY_AFTER)
    before, after = list(map(_time_s, old)), list(map(_time_s, new))
    ratio = unpaired_ratio(after, before)
    is_virtual = all(job.clock == VIRTUAL for record in (*old, *new) for job in record.jobs)
    if is_virtual and len(set(before)) == len(set(after)) == 1:
        ratio = exactly(ratio.median, ratio.n)
    return Comparison(
        suite=suite,
        cell=cell,
        change=_change(ratio, tolerance),
        time_ratio=ratio,
        bytes_ratio=_bytes_ratio(old, new),
    )


def _change(ratio: Interval, tolerance: float) -> Change:
    if ratio.is_range:
        return Change.OPEN
    if ratio.low > 1.0 + tolerance:
        return Change.SLOWER
    return Change.FASTER if ratio.high < 1.0 - tolerance else Change.SAME


def _time_s(record: Record) -> float:
    if len(record.jobs) > 1 and record.makespan_s:
        return record.makespan_s
    return sum(map(step_time_s, record.jobs))


def _bytes_ratio(old: Sequence[Record], new: Sequence[Record]) -> float | None:
    """None where some job's bytes were not counted."""
    counted = [[[counted_a_step(job) for job in record.jobs] for record in side] for side in (old, new)]
    if any(each is None for side in counted for jobs in side for each in jobs):
        return None
    before, after = (float(np.median([sum(filter(None, jobs)) for jobs in side])) for side in counted)
    return after / before if before > 0 else None


def _check_same_machine(old: Sequence[Record], new: Sequence[Record]) -> None:
    machines = [set(map(_machine, side)) for side in (old, new)]
    if old and new and machines[0] != machines[1]:
        raise _different_machines(*machines)


def _different_machines(before: Iterable[Machine], after: Iterable[Machine]) -> CompareError:
    return CompareError(
        f"different machines: {_named(before)} before, {_named(after)} after; run both sides on one machine, or add "
        "--allow-different to compare machines too"
    )


def _is_timed(record: Record) -> bool:
    """Whether this machine's clock timed it: what a virtual one says is alike on every machine."""
    return record.collective is not None or any(job.clock == MEASURED for job in record.jobs)


def _machine(record: Record) -> Machine:
    own = record.environment
    return own.machine, own.num_cores, own.device


def _named(machines: Iterable[Machine]) -> str:
    return " and ".join(sorted(f"{name or 'unnamed'} ({cores} cores, {device})" for name, cores, device in machines))


def _check_same_fabrics(old: Sequence[Record], new: Sequence[Record]) -> None:
    before, after = _by_cell(old), _by_cell(new)
    for cell in sorted(before.keys() & after.keys()):
        fabrics = [{fabric_key(record.fabric) for record in side[cell]} for side in (before, after)]
        if fabrics[0] != fabrics[1]:
            names = [" and ".join(sorted(f"{key.label}, {key.describe()}" for key in side)) for side in fabrics]
            raise CompareError(
                f"{cell[1]}: different fabrics, {names[0]} before, {names[1]} after; "
                "run both sides on one fabric, or add --allow-different to compare fabrics too"
            )


def _check_same_work(old: Sequence[Record], new: Sequence[Record]) -> None:
    before, after = _by_cell(record for record in old if record.jobs), _by_cell(record for record in new if record.jobs)
    for cell in sorted(before.keys() & after.keys()):
        works = [" and ".join(sorted(set(map(_work, side[cell])))) for side in (before, after)]
        if works[0] != works[1]:
            raise CompareError(
                f"{cell[1]}: different work, {works[0]} before, {works[1]} after; use the same options on both, "
                "or allow different work if that is the question (--allow-different)"
            )


def _work(record: Record) -> str:
    """What a time of the cell is the time of: a step, or of several jobs all steps."""
    steps = [f"{job.num_steps} steps of " if len(record.jobs) > 1 else "" for job in record.jobs]
    return ", ".join(
        f"{own}{job.workload} with batches of {job.batch_size}" + (f" × {job.accumulate}" if job.accumulate > 1 else "")
        for own, job in zip(steps, record.jobs, strict=True)
    )
