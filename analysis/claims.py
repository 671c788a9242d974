"""What records say of a claim, decided in one place: by the ends of intervals, never by medians.

A cell is *met* where the whole interval lies beyond the threshold, *missed* where it lies wholly on the other side,
else *undecided*. Fewer than six repeats are a range and decide nothing.

Several cells at once are corrected where one chance result would be enough. A claim of every cell is met only if each
of them meets it, which at 95 % each is wrong in at most 5 % of cases, however many there are (an intersection-union
test: Berger, Technometrics 24, 1982). It is missed as soon as one of k cells misses it, so a miss counts at 1 − 5 %/k
(Bonferroni). A claim of some cell is the mirror image. Bonferroni and not Holm, which has no intervals to show.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, TypeVar

from analysis.stats import FEWEST_FOR_LEVEL, LEVEL, Interval, fewest_for
from analysis.wording import interval, number, percent, plural

EVERY_CELL = "every cell"  # how a rule begins by which the table of cells says it all
MOST_NAMED = 3  # cells in a sentence
FAVOURED = 5 / 8  # of the risk of 5 %: the 3.1 % at which the span of six repeats misses a median
Operands = tuple[tuple[str, ...], ...]


class Outcome(StrEnum):
    """What the records say of a claim. OUT_OF_REACH: it needs what is not to be had here, with the reason."""

    MET = "met"
    MISSED = "missed"
    UNDECIDED = "undecided"
    OUT_OF_REACH = "out of reach"
    NOT_MEASURED = "not measured"


class Formula(StrEnum):
    """Which formula a claim's figures are, of the records of each cell by operand; repeat by repeat unless it says so.

    `docs/claims.md` names it, and `scripts/recompute_claims.py` works it out again from the records alone. Figures of
    NONE stand there as not recomputed.
    """

    NONE = ""
    SPEED_UP = "step of 1 over step of 2"
    OF_BOUND = "(step of 1 − step of 2) over (step of 1 − bound), the bound from 2 and one worker alone 3"
    ERROR = "predicted over measured step, less one"
    PREDICTED_EFFICIENCY = "computation of 1 over the predicted step of 2, at most 1"
    GAIN = "Σ step of 1 over step of 2"
    FIFO_SHARE = "T* from the costs of 1 over the period of 2"
    LIMIT_SHARE = "hard limit from the costs of 1 over the period of 2"
    GAIN_RATIO = "gain of 2 over gain of 3, each over 1"
    AT_ALPHA = "gain of 2 over that at its α, on the line from 4 to 6, each over the one before"
    PHASES = "gain of 2 over the median gain of 3 and on, each over 1"
    RIVAL = "gain of 2 over that of the one job 3, each over 1"
    HANDOVER = "median hand-over of 1"
    BITS = "float32 over the code of 1"
    SHORTFALL = "final accuracy of 1 less that of 2"
    SOONER = "time to the target of 1 over that of the last"
    WEIGHTS = "share of jobs of 2 with the weights of 1"
    VOLUME = "bytes of 1 over bytes of 2"
    FINAL_LOSS = "final loss of 1 over that of 2"
    SAME_LOSS = "share of repeats of 1 that end with the same loss in 2"
    PREDICTED_STEP = "predicted step of 1 over that of 2"
    PREDICTED_GAIN = "least predicted step of the others over that of the last"
    IDLE = "idle share of 1"
    THROUGHPUT = "samples per second of 1 over those of 2"
    MEMORY = "memory of the fullest device of 1 over that of 2"
    STEPS_TO_TARGET = "steps to the target of 1 over those of 2"
    BUSY_BY_CLOCK = "busy share of 1 over that of the virtual clock"
    STEP_BY_CLOCK = "step of 1 over that of the virtual clock"
    BUS_SHARE = "bus bandwidth of 1 at 25 MB over the line"
    ALPHA_RATIO = "α of 1 over α of 2"
    COMPLETION = "mean completion of 1 over that of 2"
    SLOWDOWN = "mean completion over time alone of 1 over that of 2"
    GROUPS = "mean time of the groups of 1 over that of 2"
    USED = "end of the last use of 1 over that of 2"
    OBJECTIVE = "final objective of 1 over that of 2"
    ROUNDS = "rounds of 1 over those of 2 to within 1 % of the lower end"
    GOODPUT = "goodput of 1 over that of 2"
    LINE_SHARE = "goodput of 1 over its line rate"
    LEAST_SHARE = "least over mean goodput of the flows of 1"
    QUEUE = "mean queue of 1 over that of 2"
    QUEUE_OVER_MARK = "mean queue of 1 over its marking threshold"
    HIGHEST_QUEUE = "highest queue of 1 over its marking threshold and a frame per flow"
    ROUND_TRIP = "mean round trip of 1 over that of 2"
    CIRCLE = "1 where links of 1 wait in a circle, else 0"
    OVER_MEDIAN = "step of 1 over the median step of 2"
    STASHES = "1 where all stashes of 1 peak as by the formula, else 0"
    DISTANCE = "distance of 1's weights from one device's, relative to their norm"


class CellValue(NamedTuple):
    """A cell, what was measured there, and the ids of its records, operand by operand of the claim's formula."""

    cell: str
    value: Interval
    of: Operands = ()


class HasRecords(Protocol):
    """What a cell's row says of itself, whatever it holds."""

    @property
    def cell(self) -> str:
        """The cell's name."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Its records."""
        ...

    @property
    def runs(self) -> Mapping[int, object]:
        """What it says by repeat."""
        ...


OneCell = TypeVar("OneCell", bound=HasRecords)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCell:
    """A cell of a claim with its own outcome. `value` is in the units of the claim."""

    cell: str
    value: Interval
    outcome: Outcome
    of: Operands = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """A claim, what the records say in one sentence, the rule that decided, and the cells worst first.

    `details` are lines on claims that are not about one interval a cell.
    """

    claim: str
    outcome: Outcome
    sentence: str
    rule: str = ""
    formula: Formula = Formula.NONE
    unit: str = ""
    cells: tuple[JudgedCell, ...] = ()
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What is claimed: in every cell, or with `some` in one at least, the interval lies between `low` and `high`.

    `quantity` says in words what is measured and `formula` which one it is; `scale` and `unit` turn it into what
    people read.
    """

    claim: str
    quantity: str
    low: float | None = None
    high: float | None = None
    some: bool = False
    formula: Formula = Formula.NONE
    scale: float = 1.0
    unit: str = ""

    @property
    def rule(self) -> str:
        """`every cell at least 0.96`, in full: it decides."""
        low, high = (None if end is None else f"{end * self.scale:.6g}{self.unit}" for end in (self.low, self.high))
        bounds = (low and f"at least {low}", high and f"at most {high}")
        return f"{'some cell' if self.some else EVERY_CELL} {' and '.join(filter(None, bounds))}"


def side(value: Interval, *, low: float | None = None, high: float | None = None, level: float = LEVEL) -> Outcome:
    """One interval against a threshold: met, missed or undecided."""
    if not value.covers(level):
        return Outcome.UNDECIDED
    own = value.at(level)
    if (low is None or own.low >= low) and (high is None or own.high <= high):
        return Outcome.MET
    beyond = (low is not None and own.high < low) or (high is not None and own.low > high)
    return Outcome.MISSED if beyond else Outcome.UNDECIDED


def joint_level(values: Sequence[Interval]) -> float:
    """The level of each interval at which one of them is wrong in at most 5 % of cases. Exact ones are never wrong."""
    return 1 - (1 - LEVEL) / max(1, sum(not value.exact for value in values))


def surely_above(values: Sequence[Interval], low: float) -> list[bool]:
    """Which values are surely above `low`, with one of them wrongly so in at most 5 % of cases. Their order must have
    been fixed before any was measured: the first may be wrong in `FAVOURED` of the 5 %, the others share the rest, and
    each that is above passes its part on to the next. Exact values need none.

    Source: Wiens and Dmitrienko, "The fallback procedure for evaluating a single family of hypotheses", Journal of
    Biopharmaceutical Statistics 15, 2005.
    """
    num_others = sum(not value.exact for value in values) - 1
    part = (1.0 if num_others < 1 else FAVOURED) * (1 - LEVEL)
    passed_on, above = 0.0, []
    for value in values:
        if value.exact:
            above.append(value.low >= low)
            continue
        risk = part + passed_on
        above.append(side(value, low=low, level=1 - risk) is Outcome.MET)
        passed_on = risk if above[-1] else 0.0
        part = _part_of_others(num_others)
    return above


def fewest_among(values: Sequence[Interval]) -> int:
    """The fewest repeats with which any of `values` can be surely above a limit (`surely_above`), whatever the others
    are."""
    num_others = sum(not value.exact for value in values) - 1
    return FEWEST_FOR_LEVEL if num_others < 1 else fewest_for(1 - _part_of_others(num_others))


def _part_of_others(num_others: int) -> float:
    return (1 - FAVOURED) * (1 - LEVEL) / max(1, num_others)


def decide(
    values: Sequence[Interval],
    *,
    low: float | None = None,
    high: float | None = None,
    some: bool = False,
) -> Outcome:
    """The outcome over all intervals at once: in every one of them, or with `some` in one at least, which then counts
    alone at `joint_level`."""
    if not values:
        return Outcome.NOT_MEASURED
    enough, needed = (Outcome.MET, Outcome.MISSED) if some else (Outcome.MISSED, Outcome.MET)
    alone = joint_level(values)
    if any(side(value, low=low, high=high, level=alone) is enough for value in values):
        return enough
    return needed if all(side(value, low=low, high=high) is needed for value in values) else Outcome.UNDECIDED


def judge(claim: Level, measured: Sequence[CellValue]) -> ClaimRow:
    """The outcome of one claim over the cells it selects."""
    values = [one.value for one in measured]
    outcome = decide(values, low=claim.low, high=claim.high, some=claim.some)
    if not measured:
        return not_measured(claim.claim, "No cell shows it.", rule=claim.rule)
    worst_first = sorted(measured, key=lambda one: one.value.median, reverse=claim.low is None)
    cells = tuple(
        JudgedCell(
            cell=one.cell,
            value=one.value.times(claim.scale),
            outcome=side(one.value, low=claim.low, high=claim.high),
            of=one.of,
        )
        for one in worst_first
    )
    sentence = f"{claim.quantity}: {_spread(cells, claim.unit)} {' '.join(_tally(claim, cells, values))}"
    return ClaimRow(
        claim=claim.claim,
        outcome=outcome,
        sentence=sentence,
        rule=claim.rule,
        formula=claim.formula,
        unit=claim.unit,
        cells=cells,
    )


def judge_beside(
    claim: Level,
    rows: Mapping[tuple[str, str], OneCell],
    cells: Sequence[tuple[str, str, str]],
    over: Callable[[OneCell, OneCell], Interval],
) -> ClaimRow:
    """The outcome over cells beside others: of each group the first label over the second, where both are in `rows`,
    which go by group and label."""
    found = []
    for group, label, other in cells:
        own, base = rows.get((group, label)), rows.get((group, other))
        if own is not None and base is not None and own.runs.keys() & base.runs.keys():
            found.append(CellValue(own.cell, over(own, base), (own.ids, base.ids)))
    return judge(claim, found)


def _spread(cells: Sequence[JudgedCell], unit: str) -> str:
    lowest, highest = (end(cells, key=lambda cell: cell.value.median) for end in (min, max))
    if len(cells) == 1:
        return f"{text_of(lowest.value, unit)} in {lowest.cell}."
    middle = number(statistics.median(cell.value.median for cell in cells))
    return (
        f"median of {len(cells)} cells {middle}{unit}, lowest {text_of(lowest.value, unit)} in {lowest.cell}, "
        f"highest {text_of(highest.value, unit)} in {highest.cell}."
    )


def _tally(claim: Level, cells: Sequence[JudgedCell], values: Sequence[Interval]) -> Iterable[str]:
    """How many cells are on which side, and what stands in the way of the rest."""
    by_outcome = {outcome: [cell for cell in cells if cell.outcome is outcome] for outcome in Outcome}
    num_met, enough = len(by_outcome[Outcome.MET]), ", and one is enough" if claim.some else ""
    yield f"{num_met} of {plural(len(cells), 'cell')} as claimed{enough}."
    for outcome in (Outcome.MISSED, Outcome.UNDECIDED):
        if found := by_outcome[outcome]:
            told = "Not" if claim.some and outcome is Outcome.MISSED else outcome.value.capitalize()
            yield f"{told} in {_named(found)}."
    thin = sum(value.is_range for value in values)
    if thin:
        yield f"{plural(thin, 'cell')} with fewer than {fewest_for(LEVEL)} repeats: a range decides nothing."
    level = joint_level(values)
    if level > LEVEL and by_outcome[Outcome.MET if claim.some else Outcome.MISSED]:
        yield f"One of {len(cells)} cells counts alone at {percent(level, 4)} (n of {fewest_for(level)} or more)."


def _named(cells: Sequence[JudgedCell]) -> str:
    """The worst few by name; all of them stand in the table."""
    shown, more = cells[:MOST_NAMED], len(cells) - MOST_NAMED
    return ", ".join(cell.cell for cell in shown) + (f", and {plural(more, 'cell')} more" if more > 0 else "")


def text_of(value: Interval, unit: str = "") -> str:
    """`0.97 [0.96, 0.98] (n = 6)`, of a range `0.97 (0.96 to 0.98) (n = 3)`, `0.97 (exact)`."""
    of = "predicted" if value.is_foretold else "exact" if value.exact else f"n = {value.n}"
    return f"{interval(value)}{unit} ({of})"


def outcome_of(holds: bool) -> Outcome:
    """Met where what is counted holds, else missed; for claims without an interval."""
    return Outcome.MET if holds else Outcome.MISSED


def judged_here(claims: Iterable[ClaimRow]) -> list[ClaimRow]:
    """The claims that a report shows: not those that need cells which were not run."""
    return [row for row in claims if row.outcome is not Outcome.NOT_MEASURED]


def left_out(claims: Sequence[ClaimRow]) -> str:
    """A sentence on the claims that a report does not show; empty where it shows all."""
    count = len(claims) - len(judged_here(claims))
    said = (
        f"Not shown: {plural(count, 'claim')} that no cell here can decide. `crossover-bench claims` lists every claim."
    )
    return said if count else ""


def not_measured(claim: str, sentence: str, *, rule: str = "") -> ClaimRow:
    """A claim that no record bears on, with the reason."""
    return ClaimRow(claim=claim, outcome=Outcome.NOT_MEASURED, sentence=sentence, rule=rule)


def out_of_reach(claim: str, reason: str, *, rule: str = "") -> ClaimRow:
    """A claim that needs what is not to be had here, with the reason."""
    return ClaimRow(claim=claim, outcome=Outcome.OUT_OF_REACH, sentence=reason, rule=rule)
