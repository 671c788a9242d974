"""The values that say what compression costs and saves: one method in one place, and the links on which it pays."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.cells import SIMULATED
from analysis.stats import Interval
from analysis.steps.rows import Setting
from analysis.wording import number
from results.facts import ChargeFacts, Role
from results.record import Phases


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """One method in one place.

    `name` is the suite's, `method` its label in real sizes, `ran` what ran to the letter. `bits` are sent by a rank for
    each parameter and step, counted by the engine, or by the interface where the system is not ours; those of steps
    that a warm-up sends as they are do not count, but DGC's rising density does (`bits_with_warm_up`), and `mean_bits`
    are of all steps. `share` is how many times its code a rank sends, `theory_bits` the code by its paper times that;
    None where nobody says. `role` is what its suite says that it is for, `charge` what compressing it costs in replay.
    """

    place: Setting
    name: str
    method: str
    system: str
    evidence: str
    phases: Phases
    step_time_s: Interval | None = None
    by_repeat: tuple[tuple[int, float], ...] = ()
    predicted_s: float | None = None
    bits: float | None = None
    bits_with_warm_up: bool = False
    mean_bits: float | None = None
    share: float | None = None
    theory_bits: float | None = None
    role: Role = Role.METHOD
    charge: ChargeFacts | None = None
    warm_up_steps: int = 0
    ids: tuple[str, ...] = ()
    ran: str = ""

    @property
    def ratio(self) -> float | None:
        """Float32 over the code, whichever way either is sent."""
        return 32.0 * self.share / self.bits if self.bits and self.share else None

    @property
    def evidence_text(self) -> str:
        """The evidence, and the fabric's kind where that is another word."""
        return ", ".join(dict.fromkeys((self.evidence, self.place.fabric)))

    @property
    def was_run(self) -> bool:
        """Whether it is more than a prediction, be it timed or, in lockstep, only counted."""
        return self.evidence != SIMULATED

    @property
    def is_dense(self) -> bool:
        """Whether every gradient is sent in full, in whatever packing."""
        return self.role is Role.DENSE

    @property
    def is_rival(self) -> bool:
        """Whether it is what a code has to beat: the dense methods, and simple codes such as half precision."""
        return self.role in (Role.DENSE, Role.RIVAL)

    @property
    def compress_s(self) -> float | None:
        """Seconds per step until messages were on their way."""
        if self.phases.compress_s is None or self.phases.decompress_s is None:
            return None
        return self.phases.compress_s - self.phases.decompress_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The rate up to which something pays, over repeats, in Gbit/s: 0 not at `lowest`, the lowest rate that was asked
    about, ∞ on all rates, up to `highest`. `again`: in some repeat it also pays on other, higher rates."""

    gbit: Interval
    lowest: float
    highest: float
    basis: str
    again: bool = False

    @property
    def text(self) -> str:
        """Such as `< 0.31 [0.28, 0.35]`, `nowhere from 10 up [< 10, 33]`, `not at 10, and on some higher ones`."""
        return f"{self._median}{self._bounds}{', and on some higher ones' if self.again else ''}"

    @property
    def _median(self) -> str:
        if self.gbit.median == 0:
            return f"not at {number(self.lowest)}" if self.again else f"nowhere from {number(self.lowest)} up"
        if math.isinf(self.gbit.median):
            return f"all of {number(self.lowest)} to {number(self.highest)}"
        return f"< {number(self.gbit.median)}"

    @property
    def _bounds(self) -> str:
        """Empty without any, and where every repeat pays nowhere, or on all rates."""
        if not self.gbit.has_bounds or (self.gbit.low == self.gbit.high and self.gbit.high in (0, math.inf)):
            return ""
        low, high = _bound(self.gbit.low, self), _bound(self.gbit.high, self)
        return f" ({low} to {high})" if self.gbit.is_range else f" [{low}, {high}]"


def _bound(value: float, threshold: Threshold) -> str:
    if value == 0:
        return f"< {number(threshold.lowest)}"
    return f"> {number(threshold.highest)}" if math.isinf(value) else number(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaysBelow:
    """The links on which a method's step is shorter than that of the better of tuned float32 and half (a half: than
    float32's), `where` they are (see `Setting.where`), and `unshaped`, the same ratio on the link without a rate, above
    1 where it pays there too."""

    name: str
    workload: str
    num_workers: int
    where: str
    threshold: Threshold
    unshaped: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SoonerRow:
    """Time to the target, the dense run's over a method's, by rate: measured at `home_gbit`, elsewhere steps to the
    target times the step measured there, `unshaped` on the link without a rate. `gains` is empty where some repeat
    never got there; `lost_too` is at home with 0 for these. `of` are the records: every dense method's, then its own.
    """

    name: str
    workload: str
    home_gbit: float
    gains: tuple[tuple[float, Interval], ...]
    threshold: Threshold | None
    num_reached: int
    num_repeats: int
    unshaped: Interval | None = None
    lost_too: Interval | None = None
    of: tuple[tuple[str, ...], ...] = ()

    @property
    def home(self) -> Interval | None:
        """Where it was measured."""
        return dict(self.gains).get(self.home_gbit)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionStudy:
    """Everything that the suite's records say: rows by place, the rates at which methods pay, times to targets."""

    rows: tuple[MethodRow, ...] = ()
    pays: tuple[PaysBelow, ...] = ()
    sooner: tuple[SoonerRow, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """Every record of it, once."""
        return tuple(dict.fromkeys(i for row in self.rows for i in row.ids))
