"""What is claimed of the scheduler, and what the records say of each claim: met, missed, or not measured.

A claim selects one interval a cell and a level that each has to reach; every number in its sentence comes from the
records. Claims that are not about one interval a cell have a function of their own in `analysis.findings`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.axes import RHO
from analysis.cells import REPLAY
from analysis.findings import peak_of_sweeps, same_weights, shrinks_with_exposure
from analysis.shared_rows import (
    CROSSOVER,
    FAIR,
    ClaimRow,
    OptimiserRow,
    Outcome,
    PairRow,
    SharingRow,
    SweepRow,
)
from analysis.stats import Interval, bootstrap_interval
from analysis.wording import interval, number, plural

SUITE = "crossover"
HOLD = "hold"
BARRIER = "slot-barrier"
FAIR_WAY = f"{CROSSOVER}, {FAIR} link"
NOISE = 0.01  # of a ratio of two policies; less is not called worse
FEWEST_PHASES = 5
PAPERS_NETWORKS = ("resnet50", "vgg16")
PAPERS_SPEEDUP = 1.20  # abstract of arXiv 2103.07974, its words: 20 % speed-up for ImageNet classification

Measured = tuple[str, Interval]  # cell and what was measured there
Select = Callable[[Sequence[PairRow], np.random.Generator], Iterator[Measured]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What is claimed: in every cell the judged end of the interval lies between `low` and `high`.

    Cells with fewer than `fewest` repeats do not count. `quantity` says in words what is measured, `unit` multiplies
    it for people.
    """

    claim: str
    quantity: str
    low: float | None = None
    high: float | None = None
    fewest: int = 5
    judged: Callable[[Interval], float] = lambda value: value.median
    scale: float = 1.0
    unit: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(Level):
    """A level with the cells that it is about."""

    select: Select


def claims(
    pairs: Sequence[PairRow], sweeps: Sequence[SweepRow], optimised: Sequence[OptimiserRow], rng: np.random.Generator
) -> tuple[ClaimRow, ...]:
    """Every claim with its outcome, in the order of the table; `pairs` are those of sweeps too."""
    judged = tuple(judge(claim, list(claim.select(pairs, rng))) for claim in CLAIMS)
    return (*judged, peak_of_sweeps(sweeps), shrinks_with_exposure(optimised), same_weights(pairs))


def judge(claim: Level, measured: Sequence[Measured]) -> ClaimRow:
    """The outcome of one claim over the cells it selects."""
    counted = [(cell, value) for cell, value in measured if value.n >= claim.fewest]
    thin = len(measured) - len(counted)
    left_out = f" {plural(thin, 'cell')} with fewer than {claim.fewest} repeats left out." if thin else ""
    if not counted:
        return ClaimRow(claim=claim.claim, outcome=Outcome.NOT_MEASURED, sentence=f"No cell shows it.{left_out}")
    missed = [(cell, value) for cell, value in counted if not _reaches(claim, value)]
    outcome = Outcome.MISSED if missed else Outcome.MET
    sentence = f"{claim.quantity}: {_spread(claim, counted)} {_tally(claim, counted, missed)}{left_out}"
    worst_first = sorted(counted, key=lambda one: claim.judged(one[1]), reverse=claim.low is None)
    details = tuple(_detail(claim, *one, missed=one in missed) for one in worst_first)
    return ClaimRow(claim=claim.claim, outcome=outcome, sentence=sentence, details=details)


def _reaches(claim: Level, value: Interval) -> bool:
    judged = claim.judged(value)
    return (claim.low is None or judged >= claim.low) and (claim.high is None or judged <= claim.high)


def _spread(claim: Level, counted: Sequence[Measured]) -> str:
    medians = [value.median for _, value in counted]
    lowest = min(counted, key=lambda one: one[1].median)
    highest = max(counted, key=lambda one: one[1].median)
    if len(counted) == 1:
        return f"{_text(claim, lowest[1])} in {lowest[0]}."
    middle = number(statistics.median(medians) * claim.scale)
    return (
        f"median of {len(counted)} cells {middle}{claim.unit}, lowest {_text(claim, lowest[1])} in {lowest[0]}, "
        f"highest {_text(claim, highest[1])} in {highest[0]}."
    )


def _tally(claim: Level, counted: Sequence[Measured], missed: Sequence[Measured]) -> str:
    reached = len(counted) - len(missed)
    every = "" if not missed else f" Missed in {', '.join(cell for cell, _ in missed)}."
    return f"{reached} of {plural(len(counted), 'cell')} as claimed.{every}"


def _detail(claim: Level, cell: str, value: Interval, *, missed: bool) -> str:
    return f"{cell}: {_text(claim, value)}{' (missed)' if missed else ''}"


def _text(claim: Level, value: Interval) -> str:
    """`0.97 [0.96, 0.98], n = 5`."""
    return f"{interval(value, claim.scale)}{claim.unit} (n = {value.n})"


def _shares(accepts: Callable[[PairRow, SharingRow], bool]) -> Select:
    """Measured over predicted gain of crossover with link turns, where `accepts` the cell."""

    def select(pairs: Sequence[PairRow], _: np.random.Generator) -> Iterator[Measured]:
        for pair in pairs:
            row = pair.row(CROSSOVER)
            if row is not None and row.share is not None and accepts(pair, row):
                yield row.cell, row.share

    return select


def _gains(way: str, accepts: Callable[[PairRow], bool]) -> Select:
    """The gain of one policy over running one after the other, where `accepts` the pair."""

    def select(pairs: Sequence[PairRow], _: np.random.Generator) -> Iterator[Measured]:
        for pair in pairs:
            row = pair.row(way)
            if row is not None and row.throughput is not None and accepts(pair):
                yield row.cell, row.throughput

    return select


def _against(way: str, accepts: Callable[[PairRow], bool] = lambda _: True) -> Select:
    """The gain of crossover over that of another policy, repeat by repeat."""

    def select(pairs: Sequence[PairRow], rng: np.random.Generator) -> Iterator[Measured]:
        for pair in pairs:
            row, other = pair.row(CROSSOVER), pair.row(way)
            if row is not None and other is not None and accepts(pair):
                theirs = {one.repeat: one.gain for one in other.paired}
                ratios = [one.gain / theirs[one.repeat] for one in row.paired if one.repeat in theirs]
                if ratios:
                    yield row.cell, bootstrap_interval(ratios, rng)

    return select


def _against_phases(pairs: Sequence[PairRow], rng: np.random.Generator) -> Iterator[Measured]:
    """The gain of crossover over naive co-location's median over at least five start offsets."""
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if row is not None and pair.phases is not None and pair.phases.num_phases >= FEWEST_PHASES:
            naive = pair.phases.by_repeat
            ratios = [one.gain / naive[one.repeat] for one in row.paired if one.repeat in naive]
            if ratios:
                yield row.cell, bootstrap_interval(ratios, rng)


def _against_rival(pairs: Sequence[PairRow], rng: np.random.Generator) -> Iterator[Measured]:
    """The gain of crossover over that of one job with all jobs' batches; medians, since repeats differ in number."""
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if row is not None and row.throughput is not None and pair.rival is not None:
            scale = 1.0 / pair.rival.throughput.median
            own = row.throughput
            yield row.cell, Interval(own.median * scale, own.low * scale, own.high * scale, pair.rival.throughput.n)


def _handovers(pairs: Sequence[PairRow], _: np.random.Generator) -> Iterator[Measured]:
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if row is not None and row.turns is not None and row.turns.handover_p50_s and pair.evidence == REPLAY:
            yield row.cell, row.turns.handover_p50_s


def is_null_control(pair: PairRow) -> bool:
    """Whether there is nothing to hide: one worker, or a group that the suite calls null."""
    return pair.key.num_workers == 1 or pair.group.startswith("null")


def is_papers_case(pair: PairRow) -> bool:
    """Whether it is ImageNet classification as in the abstract: identical jobs of its networks, replayed, on a rate."""
    networks = {workload.partition("-")[0] for workload, *_ in pair.work}
    return pair.group.startswith("imagenet") and len(networks) == 1 and networks <= set(PAPERS_NETWORKS)


def _replayed(pair: PairRow, _: SharingRow) -> bool:
    wide = pair.evidence == REPLAY and pair.key.num_hosts in (4, 8)
    return wide and (pair.axis == RHO or (pair.is_mixed and not pair.axis))


def _real(pair: PairRow, _: SharingRow) -> bool:
    return pair.evidence != REPLAY and pair.key.num_hosts == 2 and not pair.key.num_virtual


def _horovod(pair: PairRow, row: SharingRow) -> bool:
    return _real(pair, row) and row.systems == ("horovod",)


def high_end(value: Interval) -> float:
    """The upper bound, or the median where there is none."""
    return value.high if value.has_bounds else value.median


def low_end(value: Interval) -> float:
    """The lower bound, or the median where there is none."""
    return value.low if value.has_bounds else value.median


_SHARE = "Measured over predicted gain"
CLAIMS: tuple[Claim, ...] = (
    Claim(
        claim="Replay on 4 and 8 hosts, ρ sweeps and mixed pairs: at least 0.96 of the predicted gain",
        quantity=_SHARE,
        select=_shares(_replayed),
        low=0.96,
    ),
    Claim(
        claim="Real compute on 2 hosts: at least 0.90 of the predicted gain",
        quantity=_SHARE,
        select=_shares(_real),
        low=0.90,
    ),
    Claim(
        claim="Real Horovod jobs on 2 hosts: at least 0.90 of the predicted gain",
        quantity=_SHARE,
        select=_shares(_horovod),
        low=0.90,
    ),
    Claim(
        claim="Holding the turn through communication gains nothing: 1.00 ± 0.03",
        quantity="Gain of hold",
        select=_gains(HOLD, lambda _: True),
        low=0.97,
        high=1.03,
    ),
    Claim(
        claim="With nothing to hide, crossover loses at most 3 %",
        quantity="Gain of crossover in the null controls",
        select=_gains(CROSSOVER, is_null_control),
        low=0.97,
    ),
    Claim(
        claim="Mixed pairs gain over running one after the other",
        quantity="Gain of crossover, whose interval must lie above 1",
        select=_gains(CROSSOVER, lambda pair: pair.is_mixed),
        low=1.0,
        judged=low_end,
    ),
    Claim(
        claim="Link turns in order are never worse than a fairly shared link",
        quantity=f"Gain with link turns over gain with a fair link (worse: the whole interval below {1 - NOISE:g})",
        select=_against(FAIR_WAY),
        low=1.0 - NOISE,
        judged=high_end,
    ),
    Claim(
        claim="Link turns in order beat a fairly shared link where jobs differ",
        quantity="Gain with link turns over gain with a fair link in mixed pairs, whose interval must lie above 1",
        select=_against(FAIR_WAY, lambda pair: pair.is_mixed),
        low=1.0,
        judged=low_end,
    ),
    Claim(
        claim=f"Crossover beats the median of naive co-location over {FEWEST_PHASES} or more start offsets",
        quantity="Gain of crossover over that median",
        select=_against_phases,
        low=1.0,
    ),
    Claim(
        claim="The token is never worse than a slot barrier",
        quantity=f"Gain of crossover over that of the slot barrier (worse: the whole interval below {1 - NOISE:g})",
        select=_against(BARRIER),
        low=1.0 - NOISE,
        judged=high_end,
        fewest=3,
    ),
    Claim(
        claim="Two jobs in turns beat one job with twice the batch",
        quantity="Samples/s of crossover over those of the one job",
        select=_against_rival,
        low=1.0,
        fewest=3,
    ),
    Claim(
        claim=f"ImageNet networks gain the {100 * (PAPERS_SPEEDUP - 1):.0f} % of the abstract's claim, at every rate",
        quantity="Gain of crossover",
        select=_gains(CROSSOVER, is_papers_case),
        low=PAPERS_SPEEDUP,
        fewest=3,
    ),
    Claim(
        claim="Half of the hand-overs in replay take at most 100 µs, on the host where they are slowest",
        quantity="Median hand-over",
        select=_handovers,
        high=100e-6,
        scale=1e6,
        unit=" µs",
    ),
)
