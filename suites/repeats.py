"""How often a cell is run: until its ratio to its reference is known, or the time is spent.

A cell is known when it has six valid repeats or more and the 95 % interval of its ratio lies within the target around
the median: ±1 % on the paced fabric, ±3 % elsewhere. What is still unknown gets another repeat, together with the cells
that it is compared with, since ratios pair neighbours. Whether a cell goes on depends on the records of earlier repeats
alone, so a run that was interrupted decides as if it had not been.

Where the budget is too small for six repeats of every place, it goes to as many places as it can take to six: five
repeats of everything would decide nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from analysis.cells import LOCAL, step_time_s
from analysis.stats import Interval, paired_ratio
from crossover import Sharing
from fabric.api import FabricKind
from fabric.rates import parse_seconds
from harness.trial import Trial, TrialError
from results.facts import Role
from results.record import Record, Status
from suites.api import FEWEST

FIRST_LOOK = 2  # repeats after which it is known what one takes
MOST = 40  # ±3 % of cells that vary by 9 % from repeat to repeat; beyond that time is better spent elsewhere
TARGET, PACED_TARGET = 0.03, 0.01
REFERENCE = "torch-ddp"  # where it runs; what reports compare with too
MOST_BUDGET_S = 1e6

Values = Mapping[int, float]  # seconds by repeat


def parse_budget(text: str) -> float:
    """Seconds of `90s`, `10m` or `2h`. Raises: FabricError, TrialError."""
    seconds = parse_seconds(text, "--budget", most_s=MOST_BUDGET_S, such_as="90s, 10m or 2h")
    if not seconds:
        raise TrialError(f"--budget {text!r} leaves no time; write one such as 90s, 10m or 2h")
    return seconds


def timed_cells(trials: Iterable[Trial]) -> list[Trial]:
    """One trial of each cell whose time is measured, in order. What is exact needs no more than its seeds."""
    found: dict[str, Trial] = {}
    for trial in trials:
        if trial.fabric.kind.has_processes:
            found.setdefault(trial.cell, trial)
    return list(found.values())


def next_repeat(cells: Sequence[Trial], records: Iterable[Record], repeat: int) -> list[Trial]:
    """What repeat number `repeat` has to run: cells that the repeats before it leave unknown, and their references.

    `cells` are trials of any repeat, whose seeds count on from the first.
    """
    if repeat >= MOST:
        return []
    before = [record for record in records if record.repeat < repeat]
    ended_badly = {r.cell for r in before if r.status not in (Status.OK, Status.INVALID)}
    values = values_of(before)
    wanted = set[str]()
    for place in places([cell for cell in cells if cell.cell not in ended_badly]):
        reference = reference_of(place)
        for cell in place:
            if not is_known(cell, reference, values):
                wanted |= {cell.cell, reference.cell}
    return [
        replace(cell, repeat=repeat, seed=cell.seed - cell.repeat + repeat) for cell in cells if cell.cell in wanted
    ]


def affordable(trials: Sequence[Trial], records: Sequence[Record], left_s: float) -> list[Trial]:
    """Of one repeat's trials those of the places that can have `FEWEST` repeats within `left_s`, the cheapest first;
    all of them while nothing can be said.

    What a place costs is what its repeats took so far, invalid attempts and all, and never what they measured. The
    first repeat counts only while there is no other: it loads from disk what later ones find in memory.
    """
    if not trials or trials[0].repeat < FIRST_LOOK or math.isinf(left_s):
        return list(trials)
    chosen: set[str] = set()
    # A place that has its six repeats waits for those that lack some.
    needs = [(*_need(place, records), [trial.cell for trial in place]) for place in places(trials)]
    for _, seconds, cells in sorted(needs):
        if seconds <= left_s:
            left_s -= seconds
            chosen.update(cells)
    return [trial for trial in trials if trial.cell in chosen]


def _need(place: Sequence[Trial], records: Sequence[Record]) -> tuple[bool, float]:
    """Whether a place has `FEWEST` repeats, and how many seconds those take that it lacks, or one more."""
    cells = {trial.cell for trial in place}
    mine = [record for record in records if record.cell in cells and record.status in (Status.OK, Status.INVALID)]
    values, ran = values_of(mine), {record.cell for record in mine}
    running = [trial for trial in place if trial.cell in ran] or place
    reference = values.get(reference_of(running).cell, {}).keys()
    num_pairs = min(len(values.get(trial.cell, {}).keys() & reference) for trial in running)
    later = [record for record in mine if record.repeat > 0] or mine
    seconds = sum(map(took_s, later)) / max(1, len({record.repeat for record in later}))
    return num_pairs >= FEWEST, max(1, FEWEST - num_pairs) * seconds


def took_s(record: Record) -> float:
    """Seconds from the start to the end of a timed trial, 0 of any other."""
    if record.machine is None or not FabricKind(record.fabric.kind).has_processes:
        return 0.0
    return lasted_s(record)


def lasted_s(record: Record) -> float:
    """Seconds from the start to the end of any trial, beside whatever ran at the same time."""
    if not record.started_at:
        return 0.0
    return (datetime.fromisoformat(record.ended_at) - datetime.fromisoformat(record.started_at)).total_seconds()


def place_of(trial: Trial) -> str:
    """The group and workloads of a trial's cell."""
    return trial.cell.rpartition("/")[0]


def places(cells: Sequence[Trial]) -> Iterator[list[Trial]]:
    """Cells that are compared with each other: the same group, workloads and fabric."""
    found: dict[tuple[object, ...], list[Trial]] = {}
    for cell in cells:
        found.setdefault((place_of(cell), cell.fabric), []).append(cell)
    yield from found.values()


def reference_of(place: Sequence[Trial]) -> Trial:
    """What the cells of a place are divided by: jobs one after the other; else torch DDP, a dense job or the first."""
    ways = (
        [cell for cell in place if cell.sharing is Sharing.EXCLUSIVE],
        [cell for cell in place if any(job.system.partition("(")[0] == REFERENCE for job in cell.jobs[:1])],
        [cell for cell in place if any(job.role is Role.DENSE for job in cell.jobs[:1])],
        [cell for cell in place if any(job.system != LOCAL for job in cell.jobs[:1])],
        list(place),
    )
    return next(itertools.chain.from_iterable(ways))


def values_of(records: Iterable[Record]) -> Mapping[str, Values]:
    """Seconds of every valid repeat, by cell."""
    found: dict[str, dict[int, float]] = {}
    for record in records:
        seconds = seconds_of(record)
        if seconds is not None:
            found.setdefault(record.cell, {})[record.repeat] = seconds
    return found


def seconds_of(record: Record) -> float | None:
    """What a trial is judged by: from the first job's start to the last one's end where jobs share, else a step; of a
    collective the largest size."""
    if record.status is not Status.OK:
        return None
    if record.collective is not None:
        return record.collective.largest_s
    if record.sharing != "none":
        return record.makespan_s
    return sum(step_time_s(job) for job in record.jobs if job.step_times_s()) or None


def is_known(cell: Trial, reference: Trial, values: Mapping[str, Values]) -> bool:
    """Whether its ratio to the reference has enough repeats and a narrow interval; of the reference, its time."""
    own, theirs = values.get(cell.cell, {}), values.get(reference.cell, {})
    both = sorted(own.keys() & theirs.keys())
    if len(both) < FEWEST:
        return False
    if cell.cell == reference.cell:
        return True  # a ratio of 1 by definition: it goes on as long as another cell needs it
    ratio = paired_ratio([own[repeat] for repeat in both], [theirs[repeat] for repeat in both])
    return half_width(ratio) <= target_of(cell)


def half_width(ratio: Interval) -> float:
    """The farther end of the interval from the median, relative to it."""
    return max(ratio.high / ratio.median - 1.0, 1.0 - ratio.low / ratio.median)


def target_of(cell: Trial) -> float:
    """How close to the median the ends of the interval have to be."""
    return PACED_TARGET if cell.fabric.kind is FabricKind.PACED else TARGET
