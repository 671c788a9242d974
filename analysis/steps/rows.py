"""The values that say how long a step takes: measured beside predicted, by method, workers and link."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from analysis.naming import Method
from analysis.stats import Interval
from analysis.wording import plural
from results.record import Phases

_HOST_RATE = re.compile(r", gbit=[^,)]+|(?<=\()gbit=[^,)]+(, )?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What two methods must share to be compared. `gbit` is what the link stands for, None where it has no rate;
    `network` a simulated topology with its transport and placement, `cell_group` see `cell_group_of`, `fabric` the kind
    that it is about, measured or predicted."""

    suite: str
    workload: str
    batch_size: int
    num_workers: int
    gbit: float | None
    network: str = ""
    cell_group: str = ""
    fabric: str = ""

    @property
    def without_rate(self) -> Setting:
        """What settings share that differ in the rate of hosts' links alone, which a topology's text tells too."""
        return replace(self, gbit=None, network=_HOST_RATE.sub("", self.network))

    @property
    def where(self) -> str:
        """The fabric, such as `paced`, with what else is said of it beside the rate."""
        return ", ".join(part for part in (self.fabric, self.network, self.cell_group) if part)

    def describe(self) -> str:
        """One line, such as `vgg16-replay, 4 workers, 25 Gbit/s`."""
        link = "" if self.gbit is None else f", {self.gbit:g} Gbit/s"
        others = "".join(f", {name}" for name in (self.network, self.cell_group) if name)
        return f"{self.workload}, {plural(self.num_workers, 'worker')}{link}{others}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One method in one place.

    `method` is its label with the sizes that it stands for, to three figures, `strategy` the same as plug-ins, `name` a
    short one, `ran` what ran to the letter.
    `by_repeat` holds the mean step time of each repeat, `step_time_s` their median. `predicted_s` comes from a virtual
    clock. `single_s` is the step of one worker alone, of the records `single_ids`, `bound_s` what no order of messages
    can beat: the longer of computation and of one message with all gradients, α + β·bytes. `ids` are records of both
    kinds.
    """

    place: Setting
    method: str
    strategy: Method
    name: str
    system: str
    evidence: str
    phases: Phases
    step_time_s: Interval | None = None
    by_repeat: tuple[tuple[int, float], ...] = ()
    predicted_s: float | None = None
    single_s: float | None = None
    single_ids: tuple[str, ...] = ()
    bound_s: float | None = None
    num_messages: float | None = None
    num_control_rounds: float | None = None
    ids: tuple[str, ...] = ()
    ran: str = ""

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less one; None unless both are known."""
        if self.predicted_s is None or self.step_time_s is None:
            return None
        return self.predicted_s / self.step_time_s.median - 1.0

    @property
    def efficiency(self) -> Interval | None:
        """Scaling efficiency, measured: the step of one worker alone over this one (weak scaling)."""
        if self.single_s is None or self.step_time_s is None:
            return None
        return self.step_time_s.over(self.single_s)

    @property
    def predicted_efficiency(self) -> float | None:
        """The same, predicted."""
        return None if self.single_s is None or not self.predicted_s else self.single_s / self.predicted_s

    @property
    def num_repeats(self) -> int:
        """Repeats that were measured."""
        return len(self.by_repeat)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaysRow:
    """Where a method is faster than the reference: ranges of Gbit/s, a bound None where it goes on beyond the ends.

    `basis` says whether the curves are predicted or measured, `rates` what they span, `where` the kind of link
    (see `Setting`).
    """

    name: str
    num_workers: int
    ranges: tuple[tuple[float | None, float | None], ...]
    rates: tuple[float, float]
    basis: str
    where: str

    @property
    def column(self) -> tuple[str, str, str]:
        """Where it stands in a table, line by line."""
        return str(self.num_workers), "workers", self.where

    @property
    def text(self) -> str:
        """`< 12`, `> 30`, `5–12`, `always`, `never`; several joined by a comma."""
        if not self.ranges:
            return "never"
        return ", ".join(map(_range_text, self.ranges))


def _range_text(bounds: tuple[float | None, float | None]) -> str:
    low, high = bounds
    if low is None and high is None:
        return "always"
    if low is None:
        return f"< {high:.2g}"
    return f"> {low:.2g}" if high is None else f"{low:.2g}–{high:.2g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One network of one suite under every method, on every number of workers and link."""

    suite: str
    workload: str
    batch_size: int
    rows: tuple[StepRow, ...]
    reference: str = ""
    pays: tuple[PaysRow, ...] = ()

    @property
    def title(self) -> str:
        """The network and its batch."""
        return f"{self.workload}, batch {self.batch_size}"

    @property
    def measured(self) -> tuple[StepRow, ...]:
        """Rows with a measurement."""
        return tuple(row for row in self.rows if row.step_time_s is not None)

    @property
    def ids(self) -> tuple[str, ...]:
        """Every record of it, once."""
        return tuple(dict.fromkeys(i for row in self.rows for i in row.ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRow:
    """Predicted against measured step times of a set of cells.

    `median`, `p95` and `worst` are of |predicted − measured| / measured, `bias` is the median with its sign. `tau` is
    Kendall's τ over the `num_pairs` pairs of methods in one place whose measured intervals are disjoint and medians
    differ by more than 1 %, None without any. Intervals are over cells, whose records are `cells`.
    """

    of: str
    num_cells: int
    median: Interval
    p95: Interval
    worst: float
    bias: float
    tau: Interval | None
    num_pairs: int
    fewest_repeats: int
    cells: tuple[tuple[str, ...], ...] = ()


def on_fabric(kind: str) -> str:
    """What `ErrorRow.of` says of all cells on a kind of fabric."""
    return f"on {kind}"
