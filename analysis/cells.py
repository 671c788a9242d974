"""What a record is about: its group, its label, the conditions under which it may be compared, its step time, its run.

A run is what was done without doing a trial again. Sessions (`Environment.started_at`) that add repeats or cells go on
with the run before, as `--resume` does; one that holds a trial again, here or on another machine, begins another run.
Repeats are divided by each other within a run only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import itemgetter

from analysis.wording import rate
from results.record import FabricFacts, JobResult, Record, Status

Work = tuple[tuple[str, str, str, int], ...]

LOCAL = "local"
MEASURED = "measured"  # the clock of jobs that ran in real time
OURS = "ours"
REPLAY = "replay"  # the evidence of jobs whose computation is waited for
SIMULATED = "simulated"  # the evidence of what a virtual clock predicts
VIRTUAL = "virtual"  # the clock of jobs that a virtual clock has timed


class ComputeKind(StrEnum):
    """What kind of evidence a cell is: real compute, replayed compute, or jobs that share devices."""

    REAL = "real"
    REPLAY = "replay"
    SHARING = "sharing"


@dataclass(frozen=True, slots=True)
class FabricKey:
    """What makes two networks comparable; fitted α and β are results and stay out.

    `num_virtual` peers stand beside the real hosts: their link time is paid, they do not exist.
    """

    kind: str
    label: str
    num_hosts: int
    rate_bps: float | None
    equivalent_rate_bps: float | None
    size_scale: int
    num_virtual: int = 0
    network: str = ""  # with its transport and placement

    @property
    def num_workers(self) -> int:
        """Workers of a job, virtual ones too."""
        return self.num_hosts + self.num_virtual

    @property
    def stands_for(self) -> str:
        """The line's rate, on replayed tensors the one that it stands for."""
        found = self.equivalent_rate_bps if self.size_scale > 1 else self.rate_bps
        return "rate not set" if found is None else rate(found)

    def describe(self) -> str:
        """One line for titles, such as `4 hosts, 200 Mbit/s standing for 10 Gbit/s`."""
        hosts = f"{self.num_hosts} host{'s' if self.num_hosts != 1 else ''}"
        if self.num_virtual:
            hosts = f"{self.num_workers} workers, {self.num_virtual} of them virtual"
        if self.network:
            return f"{hosts} of {self.network}"
        if self.rate_bps is None:
            return f"{hosts}, rate not set"
        if self.size_scale > 1 and self.equivalent_rate_bps is not None:
            return f"{hosts}, {rate(self.rate_bps)} standing for {rate(self.equivalent_rate_bps)}"
        return f"{hosts}, {rate(self.rate_bps)}"


@dataclass(frozen=True, slots=True)
class SettingKey:
    """Cells with equal keys answer the same question and may stand in one figure."""

    group: ComputeKind
    workload: str
    device: str
    batch_size: int
    fabric: FabricKey
    cell_group: str = ""

    def describe(self) -> str:
        """The workload and where it ran."""
        return f"{self.workload} · {self.fabric.describe()}{self.cell_group and f', {self.cell_group}'}"


def group_of(record: Record) -> ComputeKind:
    """The group, from the record's fields."""
    if is_shared(record):
        return ComputeKind.SHARING
    replayed = record.fabric.label == REPLAY or any(job.device == REPLAY for job in record.jobs)
    return ComputeKind.REPLAY if replayed else ComputeKind.REAL


def is_shared(record: Record) -> bool:
    """Whether the record is about a sharing policy, which one job alone may also be run under."""
    return len(record.jobs) > 1 or record.sharing != "none"


def work_of(record: Record) -> Work:
    """What the jobs do, whatever they are called and however long they run."""
    return tuple((job.workload, job.system, job.strategy, job.batch_size) for job in record.jobs)


def cell_group_of(record: Record) -> str:
    """What the cell's name begins with where no field says what may be compared: of workers that are unequal by design,
    and of ranks that hold parts of one network. Empty elsewhere."""
    in_parts = any(job.pipeline is not None or job.split is not None for job in record.jobs)
    return record.cell.partition("/")[0] if in_parts or record.trial.get("cluster") else ""


def fabric_key(facts: FabricFacts) -> FabricKey:
    """The comparable part of the fabric's facts."""
    return FabricKey(
        facts.kind,
        facts.label,
        facts.num_hosts,
        facts.rate_bps,
        facts.equivalent_rate_bps,
        facts.size_scale,
        facts.num_virtual,
        ", ".join(part for part in (facts.network, facts.transport, facts.placement) if part),
    )


def setting_key(record: Record) -> SettingKey:
    """The setting of a one-job record."""
    job = record.jobs[0]
    fabric = fabric_key(record.fabric)
    return SettingKey(group_of(record), job.workload, job.device, job.batch_size, fabric, cell_group_of(record))


def num_workers(record: Record, job: JobResult) -> int:
    """Workers of `job`, virtual ones too, which take part in every sum, and no servers; a launcher's ranks may be more
    than hosts."""
    fabric = record.fabric
    num_ranks = fabric.num_hosts * fabric.ranks_per_host + fabric.num_virtual
    return max(num_ranks - job.num_servers, len(job.ranks))


def samples_per_step(job: JobResult, num_workers: int) -> int:
    """Of all workers together. Ranks that have parts of one network, stages or splits, have one batch among them."""
    num_batches = 1 if job.pipeline is not None or job.split is not None else num_workers
    return job.batch_size * job.accumulate * num_batches


def samples_per_s(job: JobResult, num_workers: int) -> float:
    """Of all workers together; those that may be steps apart go at a pace of their own each."""
    if job.consistency is not None:
        steps_s = [statistics.fmean(rank.steps_s) for rank in job.ranks if rank.steps_s]
        return sum(samples_per_step(job, 1) / step_s for step_s in steps_s)
    return samples_per_step(job, num_workers) / step_time_s(job)


def is_measured(record: Record) -> bool:
    """Whether the trial ended well and every job has step times."""
    return record.status is Status.OK and bool(record.jobs) and all(job.is_timed for job in record.jobs)


def is_untimed(record: Record) -> bool:
    """Whether the trial ended well without a clock of its own, as in lockstep: what it sent is exact all the same."""
    return record.status is Status.OK and bool(record.jobs) and all(job.clock != MEASURED for job in record.jobs)


def step_time_s(job: JobResult) -> float:
    """Mean step time of the slowest rank: the mean, since throughput pays for slow steps too."""
    return statistics.fmean(job.step_times_s())


def cells(records: Iterable[Record]) -> list[list[Record]]:
    """Records that repeat one question, in order of repeat: same suite, cell, jobs and place on a sweep, on the same
    fabric.

    A trial that did not end well may have no jobs; it counts to the cell of its name.
    """
    ordered = sorted(records, key=lambda r: (r.cell, r.repeat, r.environment.started_at, r.id))
    works = {(record.suite, record.cell): work_of(record) for record in ordered if record.jobs}
    groups: dict[tuple[object, ...], list[Record]] = {}
    for record in ordered:
        work = work_of(record) or works.get((record.suite, record.cell))
        key = (record.suite, record.cell, fabric_key(record.fabric), work, record.link, record.axis, record.at)
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def shared_repeats(a: Sequence[Record], b: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Pairs of records with the same repeat number: run near each other, so they may be divided."""
    others = {record.repeat: record for record in b}
    return [(record, others[record.repeat]) for record in a if record.repeat in others]


def numbered(records: Iterable[Record]) -> list[Record]:
    """The records with numbers of repeats that no two runs share; those of the first run stay as they are."""
    sessions: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        sessions.setdefault((record.environment.started_at, record.environment.machine), []).append(record)
    span = 1 + max((record.repeat for session in sessions.values() for record in session), default=0)
    runs: list[set[str]] = []
    found: list[Record] = []
    for _, session in sorted(sessions.items(), key=itemgetter(0)):
        ids = {record.id for record in session}
        # The latest run that it can belong to: what is interrupted is gone on with before anything is begun again.
        place = next((n for n in reversed(range(len(runs))) if runs[n].isdisjoint(ids)), len(runs))
        if place == len(runs):
            runs.append(set())
        runs[place] |= ids
        found += [replace(record, repeat=place * span + record.repeat) for record in session]
    return found
