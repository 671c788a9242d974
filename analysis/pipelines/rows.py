"""Pipelined jobs alone on their hosts, cell by cell: step times, and bubbles and stashes beside the formulas."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.stats import Interval, exactly, median_interval
from results.facts import PipelineFacts
from results.record import JobResult, Record, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """One schedule of one workload on one fabric.

    `facts` are those of the first repeat: all but its times is alike in every one. `accuracy` is the last one, None
    where nothing was evaluated. `steps_s` are the mean step times of the `repeats`, in their order, and `bubbles` their
    idle shares (none where a system does not tell).
    """

    suite: str
    cell: str
    group: str
    workload: str
    system: str
    label: str
    fabric: str
    num_ranks: int
    samples_per_step: int
    facts: PipelineFacts
    repeats: tuple[int, ...]
    steps_s: tuple[float, ...]
    bubbles: tuple[float, ...]
    accuracy: Interval | None = None
    ids: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether processes ran, rather than a clock."""
        return self.fabric != "lockstep"

    @property
    def bubble(self) -> Interval | None:
        """The idle share over repeats, exact on the virtual clock."""
        if not self.bubbles:
            return None
        return median_interval(self.bubbles) if self.is_measured else exactly(self.bubbles[0], len(self.bubbles))

    @property
    def samples_per_s(self) -> float:
        """Throughput of all ranks together."""
        return self.samples_per_step / statistics.median(self.steps_s)


def pipeline_rows(groups: Iterable[Sequence[Record]]) -> tuple[PipelineRow, ...]:
    """A row for each cell of one pipelined job, of the repeats that ended well."""
    return tuple(row for records in groups for row in _row([one for one in records if one.status is Status.OK]))


def _row(records: Sequence[Record]) -> Iterator[PipelineRow]:
    jobs = [record.jobs[0] for record in records if len(record.jobs) == 1]
    facts = [job.pipeline for job in jobs if job.pipeline is not None]
    if not facts or len(facts) != len(records):
        return
    first, job = records[0], jobs[0]
    bubbles = [own.bubble for own in facts if own.bubble is not None]
    accuracies = [accuracy for own in jobs if (accuracy := _last_accuracy(own)) is not None]
    yield PipelineRow(
        suite=first.suite,
        cell=first.cell,
        group=first.group,
        workload=job.workload,
        system=job.system,
        label=first.label,
        fabric=first.fabric.kind,
        num_ranks=len(job.ranks),
        samples_per_step=job.batch_size * job.accumulate,
        facts=facts[0],
        repeats=tuple(record.repeat for record in records),
        steps_s=tuple(_mean_step_s(own) for own in jobs),
        bubbles=tuple(bubbles) if len(bubbles) == len(facts) else (),
        accuracy=median_interval(accuracies) if len(accuracies) == len(jobs) else None,
        ids=tuple(record.id for record in records),
    )


def _mean_step_s(job: JobResult) -> float:
    times_s = job.step_times_s()
    return sum(times_s) / len(times_s)


def _last_accuracy(job: JobResult) -> float | None:
    return next((point.accuracy for point in reversed(job.curve) if point.accuracy is not None), None)
