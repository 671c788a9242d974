"""Take the best rate of every rule from the search's records: python -m suites.largebatch_search.choose FOLDER."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from results.codec import to_jsonable
from results.record import Record, RecordError, Status, read_records
from suites.catalogue import SuiteError
from suites.largebatch.cells import DIGITS, TASKS, BatchRule, LargeBatchTask
from suites.largebatch.rates import FILE, ChosenRate
from suites.largebatch_search.grid import NAME


def main(arguments: Sequence[str]) -> int:
    """Write rates.json. Exit code 2, with the remedy, if records are not there."""
    if len(arguments) != 1:
        print("give the folder of the search's records", file=sys.stderr)
        return 2
    try:
        records = [record for record in read_records([Path(arguments[0])]) if record.suite == NAME]
        chosen = [to_jsonable(one) for one in choices(records)]
    except (RecordError, SuiteError) as error:
        print(error, file=sys.stderr)
        return 2
    FILE.write_text(json.dumps(chosen, indent=1, ensure_ascii=False) + "\n")
    print(f"{len(chosen)} rates in {FILE}")
    return 0


def choices(records: Sequence[Record]) -> Iterator[ChosenRate]:
    """The best rate of every rule at every batch. Raises: SuiteError."""
    by_cell: dict[str, Record] = {}
    for record in records:
        if record.cell in by_cell:
            raise SuiteError(f"two records of {record.cell}; a rate is chosen by one: give the folder of one search")
        by_cell[record.cell] = record
    for task in TASKS:
        for batch in task.batches:
            for rule in task.rules:
                yield _choice(by_cell, task, batch, rule)


def _choice(by_cell: dict[str, Record], task: LargeBatchTask, batch: int, rule: BatchRule) -> ChosenRate:
    ends: dict[float, tuple[float, float] | None] = {}
    for rate in rule.rates:
        cell = f"batch-{batch}/{task.workload.label}/{rule.name} at {rate:g}"
        if cell not in by_cell:
            raise SuiteError(f"no record of {cell}; run the suite {NAME} as a whole into this folder")
        ends[rate] = _end(by_cell[cell])
    found = {rate: end for rate, end in ends.items() if end is not None}
    if not found:
        raise SuiteError(
            f"{rule.name} diverged at every rate at batch {batch} on {task.workload.label}; widen its range"
        )
    metric = 0 if task is DIGITS else 1
    best = max(found, key=lambda rate: (found[rate][0], -found[rate][1]) if task is DIGITS else -found[rate][1])
    return ChosenRate(
        workload=task.workload.label,
        batch=batch,
        rule=rule.name,
        rate=best,
        accuracy=found[best][0],
        loss=found[best][1],
        tried={f"{rate:g}": None if end is None else end[metric] for rate, end in ends.items()},
        commits=tuple(sorted({record.environment.commit for record in by_cell.values()})),
    )


def _end(record: Record) -> tuple[float, float] | None:
    """Held-out accuracy and loss at the end; None for a run that diverged."""
    held_out = [point for point in record.jobs[0].curve if point.accuracy is not None] if record.jobs else []
    if record.status is not Status.OK or not held_out or not math.isfinite(held_out[-1].loss):
        return None
    return held_out[-1].accuracy or 0.0, held_out[-1].loss


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
