"""The values that say what sharing devices did: one policy, one set of jobs, one sweep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from analysis.cells import FabricKey, Work
from analysis.stats import Interval
from analysis.wording import plural
from results.record import FabricFacts, Phases

EXCLUSIVE = "exclusive"
CROSSOVER = "crossover"
NAIVE = "naive"
AT_ONCE = frozenset({NAIVE, "mps", "cassini", "tick-tock"})  # policies under which several jobs may compute at a time
FAIR = "fair"
PHASE = "phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedJobRow:
    """One job among those that share: its step time alone, its step time here, the quotient here/alone.

    `p99_ratio` is the 99th percentile of its steps here over that of its steps alone, all repeats pooled.
    `num_messages` are those of a step, None where nobody counts.
    `exposed_share` is the part of its step alone that communication adds to computation, (t − c) / t.
    """

    name: str
    workload: str
    strategy: str
    step_time_s: Interval
    solo_step_time_s: Interval | None
    slowdown: Interval | None
    phases: Phases
    num_messages: float | None = None
    p99_ratio: float | None = None
    exposed_share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """One repeat beside the exclusive one that ran near it: every job's step time alone and here, and the theory's
    gain.

    `fifo_share` and `limit_share` are the shares of T* and of the hard limit that it uses, from that one's costs.
    """

    repeat: int
    solo_s: tuple[float, ...]
    here_s: tuple[float, ...]
    bound: float | None = None
    fifo_share: float | None = None
    limit_share: float | None = None

    @property
    def gain(self) -> float:
        """Aggregate normalised throughput Σ solo step time / step time here."""
        return sum(alone / here for alone, here in zip(self.solo_s, self.here_s, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """What the turns were like: medians over repeats, the largest peak memory of a host over all of them.

    `handover_p50_s` has an interval over repeats. The busy fractions are of the time in which all jobs ran.
    """

    num_handovers: float
    handover_p50_s: Interval | None
    handover_p99_s: float | None
    device_busy: float | None
    link_busy: float | None
    peak_memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingRow:
    """One sharing policy over one set of jobs.

    `num_repeats`: those that its gain is of, which have a repeat of `exclusive` beside them; all where none has.
    `throughput`: aggregate normalised throughput Σᵢ (solo step time of i / step time of i here),
    over the steps in which all jobs ran; 1 by definition for `exclusive`, whose jobs take turns
    job by job. `makespan_ratio`: makespan of `exclusive` over makespan here; includes start, tail and
    evaluation. `bound`: the gain Σt/T* from measured c, m, t, predicted for a link that serves messages in order.
    `bound_share`: T* over the period here, repeat by repeat, both from the costs of one repeat.
    `limit_share`: the hard limit over the period here (see `analysis.sharing.limits`), `limit` the gain that the limit
    allows. `jain`: Jain's index of the jobs' normalised progress t/T, 1 where all are slowed alike. `weights_equal` of
    `weights_compared` jobs ended with the very weights that they have when they run alone with the same seed.
    """

    cell: str
    label: str
    policy: str
    num_repeats: int
    jobs: tuple[SharedJobRow, ...]
    makespan_s: Interval | None
    throughput: Interval | None
    makespan_ratio: Interval | None
    bound: Interval | None
    period_s: Interval | None
    bound_share: Interval | None = None
    prediction_source: str = ""
    is_reference: bool = False
    record_ids: tuple[str, ...] = ()
    link: str = ""
    axis: str = ""
    at: float | None = None
    systems: tuple[str, ...] = ()
    paired: tuple[Paired, ...] = ()
    limit: Interval | None = None
    limit_share: Interval | None = None
    jain: Interval | None = None
    turns: TurnFacts | None = None
    weights_equal: int = 0
    weights_compared: int = 0

    @property
    def way(self) -> str:
        """The policy as legends call it, with the link where it is shared and not taken in turns."""
        return f"{self.policy}, fair link" if self.link == FAIR else self.policy

    @property
    def p99_ratio(self) -> float | None:
        """The worst job's p99 step over its own alone."""
        return max((job.p99_ratio for job in self.jobs if job.p99_ratio is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalRow:
    """One job with the devices to itself and the batches of all: samples/s over those of the jobs one by one."""

    cell: str
    batch_size: int
    throughput: Interval
    by_repeat: tuple[tuple[int, float], ...]
    record_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseRange:
    """Naive co-location over start offsets: the median offset of each repeat, and the offsets' lowest and highest."""

    num_phases: int
    median: Interval
    lowest: float
    highest: float
    by_repeat: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """Jobs that share devices, under each policy that was tried. `names` says which jobs.

    `group` is the `suite`'s name for the question, `axis` and `at` the sweep it lies on, `strategy` the short name of
    what the jobs do about communication by themselves.
    """

    names: str
    key: FabricKey
    fabric: FabricFacts
    rows: tuple[SharingRow, ...]
    suite: str = ""
    group: str = ""
    work: Work = ()
    strategy: str = ""
    axis: str = ""
    at: float | None = None
    phases: PhaseRange | None = None
    rival: RivalRow | None = None

    @property
    def where(self) -> str:
        """The fabric in words."""
        return self.key.describe()

    @property
    def title(self) -> str:
        """The jobs and where they ran."""
        return f"{self.names} · {self.where}"

    @property
    def evidence(self) -> str:
        """What kind of number this is: measured, emulated, replay or simulated."""
        return self.key.label

    @property
    def is_mixed(self) -> bool:
        """Whether the jobs differ in more than their batch."""
        return len({job.workload for job in self.rows[0].jobs}) > 1

    @property
    def alone_ids(self) -> tuple[str, ...]:
        """Records of the same jobs one after the other, which gains are taken over."""
        return next((row.record_ids for row in self.rows if row.is_reference), ())

    def row(self, way: str) -> SharingRow | None:
        """The row of a policy (`SharingRow.way`) with jobs that start together; None where it was not measured."""
        return next((row for row in self.rows if row.way == way and row.axis != PHASE and row.throughput), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesRow:
    """One curve of a sweep: a policy at each value of the axis where it was measured."""

    way: str
    points: tuple[tuple[float, SharingRow], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """The same question over several values of `axis`. `bounds` are the predicted gains Σt/T* there.

    `num_jobs` and `num_workers` are None where the sweep varies them. `overlaps` is whether communication starts
    during backward. `borrowed` names the groups whose cells fill in values of the axis. `level` is the row of
    crossover that does not depend on the axis, such as that beside naive co-location from several phases.
    """

    names: str
    group: str
    axis: str
    evidence: str
    num_jobs: int | None
    num_workers: int | None
    overlaps: bool
    workloads: tuple[str, ...]
    series: tuple[SeriesRow, ...]
    bounds: tuple[tuple[float, Interval], ...]
    pairs: tuple[PairRow, ...]
    level: SharingRow | None = None
    borrowed: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The jobs and where they ran."""
        workers = "" if self.num_workers is None else f" · {plural(self.num_workers, 'worker')}"
        return f"{self.names}{workers}"

    @property
    def values(self) -> tuple[float, ...]:
        """Where on the axis something was measured."""
        return tuple(sorted({at for series in self.series for at, _ in series.points}))

    @property
    def rows(self) -> tuple[SharingRow, ...]:
        """Every row of every curve."""
        return tuple(row for series in self.series for _, row in series.points)

    @property
    def record_ids(self) -> tuple[str, ...]:
        """The records of every pair on it, the exclusive ones too."""
        return tuple(dict.fromkeys(i for pair in self.pairs for row in pair.rows for i in row.record_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCase:
    """Sweeps that stand in a figure of their own, beside the speed-up `level` that a paper reports."""

    name: str
    caption: str
    level: float
    sweeps: tuple[SweepRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisedRow:
    """One strategy inside the jobs, alone and with crossover.

    `of` are the records that `gain` is of: those one after the other, then those with crossover.
    `alone` and `together` are aggregate normalised throughput over the plainest strategy's jobs one after the other;
    `gain` is what crossover adds, `exposed_share` the communication that the strategy alone leaves exposed.
    """

    name: str
    exposed_share: float
    alone: Interval | None
    together: Interval | None
    gain: Interval
    bound: Interval | None
    record_ids: tuple[str, ...]
    of: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimiserRow:
    """The same jobs under several strategies, in order of the communication left exposed, most first."""

    names: str
    where: str
    evidence: str
    plain: str
    rows: tuple[OptimisedRow, ...]

    @property
    def title(self) -> str:
        """The jobs and where they ran."""
        return f"{self.names} · {self.where}"
