"""Two pipelined jobs on the same devices over time: one alone, and both, pass by pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from analysis.sharing.rows import CROSSOVER, EXCLUSIVE
from results.facts import PassTime
from results.record import Record, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPasses:
    """A job's passes in a window; times count from the window's beginning."""

    name: str
    passes: tuple[PassTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineRow:
    """Jobs of one group: the first one `alone`, and all of them `together`, over `window_s` seconds.

    `alone_busy` and `together_busy` are the parts of all devices' time in the window that they compute.
    """

    group: str
    workloads: tuple[str, ...]
    num_ranks: int
    window_s: float
    alone: JobPasses
    together: tuple[JobPasses, ...]
    ids: tuple[str, ...]

    @property
    def alone_busy(self) -> float:
        """Of the first job alone."""
        return self._busy([self.alone])

    @property
    def together_busy(self) -> float:
        """Of all jobs at once."""
        return self._busy(self.together)

    def _busy(self, jobs: Iterable[JobPasses]) -> float:
        spans = (one for job in jobs for one in job.passes)
        busy_s = sum(max(0.0, min(one.end_s, self.window_s) - max(one.start_s, 0.0)) for one in spans)
        return busy_s / (self.window_s * self.num_ranks)


def timeline_rows(groups: Iterable[Sequence[Record]]) -> tuple[TimelineRow, ...]:
    """A row for each group whose exclusive and crossover cells both tell passes."""
    told: dict[tuple[str, str], dict[str, Record]] = {}
    for records in groups:
        first = next((one for one in records if one.status is Status.OK and _tells(one)), None)
        if first is not None:
            told.setdefault((first.suite, first.group), {}).setdefault(first.sharing, first)
    return tuple(_row(own[EXCLUSIVE], own[CROSSOVER]) for own in told.values() if {EXCLUSIVE, CROSSOVER} <= own.keys())


def _tells(record: Record) -> bool:
    return len(record.jobs) > 1 and all(job.pipeline is not None and job.pipeline.passes for job in record.jobs)


def _row(alone: Record, together: Record) -> TimelineRow:
    (start_s, window_s), job = _window(together), alone.jobs[0]
    assert job.pipeline is not None
    own = _moved(job.pipeline.passes, min(one.start_s for one in job.pipeline.passes))
    step_s = job.step_times_s()[0]
    # A step alone is told once, and each one is like the next.
    repeated = [one for step in range(1 + int(window_s / step_s)) for one in _moved(own, -step * step_s)]
    return TimelineRow(
        group=together.group,
        workloads=tuple(one.workload for one in together.jobs),
        num_ranks=1 + max(one.rank for one in own),
        window_s=window_s,
        alone=JobPasses(name=job.name, passes=tuple(one for one in repeated if one.start_s < window_s)),
        together=tuple(
            JobPasses(name=one.name, passes=_moved(one.pipeline.passes, start_s))
            for one in together.jobs
            if one.pipeline is not None
        ),
        ids=(alone.id, together.id),
    )


def _window(record: Record) -> tuple[float, float]:
    """(when the first job's told passes begin, how long until they end): all jobs' are told within these steps."""
    facts = record.jobs[0].pipeline
    assert facts is not None
    start_s = min(one.start_s for one in facts.passes)
    return start_s, max(one.end_s for one in facts.passes) - start_s


def _moved(passes: Iterable[PassTime], by_s: float) -> tuple[PassTime, ...]:
    """The same, earlier by `by_s`."""
    return tuple(
        PassTime(one.rank, one.is_forward, one.micro_batch, one.start_s - by_s, one.end_s - by_s) for one in passes
    )
