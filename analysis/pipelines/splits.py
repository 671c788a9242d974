"""Jobs whose operators are split over their ranks, cell by cell: step times beside what their planners counted."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from results.facts import SplitFacts
from results.record import Record, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRow:
    """One plan of one workload on one fabric.

    `facts` are those of the first repeat: all but times and `distances` are alike in every one. `steps_s` are the mean
    step times of the repeats, in their order; `distances` those of their weights from one device's, none in replay.
    `is_measured`: by processes, not on the virtual clock.
    """

    suite: str
    cell: str
    group: str
    workload: str
    label: str
    fabric: str
    num_ranks: int
    samples_per_step: int
    facts: SplitFacts
    steps_s: tuple[float, ...]
    distances: tuple[float, ...]
    ids: tuple[str, ...] = ()
    is_measured: bool = False

    @property
    def samples_per_s(self) -> float:
        """Throughput of all ranks together."""
        return self.samples_per_step / statistics.median(self.steps_s)


def split_rows(groups: Iterable[Sequence[Record]]) -> tuple[SplitRow, ...]:
    """A row for each cell of one split job, of the repeats that ended well."""
    return tuple(row for records in groups for row in _row([one for one in records if one.status is Status.OK]))


def _row(records: Sequence[Record]) -> Iterator[SplitRow]:
    jobs = [record.jobs[0] for record in records if len(record.jobs) == 1]
    facts = [job.split for job in jobs if job.split is not None]
    if not facts or len(facts) != len(records):
        return
    first, job = records[0], jobs[0]
    steps_s = [own.step_times_s() for own in jobs]
    yield SplitRow(
        suite=first.suite,
        cell=first.cell,
        group=first.group,
        workload=job.workload,
        label=first.label,
        fabric=first.fabric.kind,
        num_ranks=len(job.ranks),
        samples_per_step=job.batch_size,
        facts=facts[0],
        steps_s=tuple(sum(times) / len(times) for times in steps_s),
        distances=tuple(own.distance for own in facts if own.distance is not None),
        ids=tuple(record.id for record in records),
        is_measured=job.clock == "measured",
    )
