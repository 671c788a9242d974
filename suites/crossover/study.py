"""What the suite crossover claims of the scheduler, judged from its records by the ends of intervals.

A gain stands beside two numbers from the costs of the same repeat: the hard limit, which no turns can pass, and T*, a
prediction for a link that serves messages in order, which a link in other hands can pass by a little.

Claims that are not about one interval a cell have a function of their own in `suites.crossover.findings`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from analysis.cells import REPLAY
from analysis.claims import CellValue, ClaimRow, Formula
from analysis.sharing.axes import ALPHA, RATE, RHO
from analysis.sharing.rows import CROSSOVER, FAIR, NAIVE, PHASE, PairRow, SharingRow, SweepRow
from analysis.stats import NOISE
from analysis.study import Evidence, PaperFigure, Study
from suites.crossover.findings import peak_of_sweeps, same_weights, shrinks_with_exposure
from suites.pair_rows import PairClaim, against, gains, judged, of_fifo, of_limit, operands, over_repeats, shares

NAME = "crossover"
HOLD = "hold"
BARRIER = "slot-barrier"
PACED = "paced"
FAIR_WAY = f"{CROSSOVER}, {FAIR} link"
SOCKETS, MODELLED = "sockets-", "modelled-"  # groups of the same jobs
FEWEST_PHASES = 5
MANY_WORKERS = 64
PAPERS_NETWORKS = ("resnet50", "vgg16")
PAPERS_SPEEDUP = 1.20  # abstract of arXiv 2103.07974, its words: 20 % speed-up for ImageNet classification

_PAPER = (
    "Two identical jobs of a network of ImageNet classification under crossover, in our replay. Dashed: the speed-up "
    "that the abstract of arXiv 2103.07974 claims; its cluster, links and baseline are not public there, so the line "
    "is a claim to set numbers beside and no measurement. Orange marks: the gain that T* predicts."
)


def claims(evidence: Evidence) -> tuple[ClaimRow, ...]:
    """Every claim with its outcome, in the order of the table."""
    return (
        *judged(CLAIMS, evidence, NAME),
        peak_of_sweeps(evidence.sweeps),
        shrinks_with_exposure(evidence.optimised),
        same_weights([pair for pair in evidence.pairs if pair.suite == NAME]),
    )


def _against_phases(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
    """The gain of crossover over naive co-location's median over at least five start offsets."""
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if row is not None and pair.phases is not None and pair.phases.num_phases >= FEWEST_PHASES:
            naive = pair.phases.by_repeat
            ratios = [one.gain / naive[one.repeat] for one in row.paired if one.repeat in naive]
            if ratios:
                offsets = [one for one in pair.rows if one.policy == NAIVE and one.axis == PHASE]
                yield CellValue(row.cell, over_repeats(pair, ratios), operands(pair, row, *offsets))


def _against_rival(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
    """The gain of crossover over that of one job with all jobs' batches, repeat by repeat."""
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if row is not None and pair.rival is not None:
            rival = dict(pair.rival.by_repeat)
            ratios = [one.gain / rival[one.repeat] for one in row.paired if one.repeat in rival]
            if ratios:
                ids = (*operands(pair, row), pair.rival.record_ids)
                yield CellValue(row.cell, over_repeats(pair, ratios), ids)


def _against_model(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
    """The gain on sockets over that of the modelled link at their α, on the line through its gains at two others."""
    known = [(pair, row) for pair in pairs if (row := pair.row(CROSSOVER)) is not None]
    for pair, row in ((pair, row) for pair, row in known if pair.group.startswith(SOCKETS)):
        twin = pair.group.replace(SOCKETS, MODELLED)
        ends = [(other, end) for other, end in known if other.group == twin and other.axis == ALPHA]
        if len(ends) != 2:
            continue
        three = [(pair, row), *ends]
        at, first, last = (one.fabric.alpha_s or 0.0 for one, _ in three)
        share = (at - first) / (last - first)
        own, low, high = ({one.repeat: one.gain for one in of.paired} for _, of in three)
        ratios = [own[n] / (low[n] + share * (high[n] - low[n])) for n in own if n in low and n in high]
        if ratios:
            ids = itertools.chain.from_iterable(operands(one, of) for one, of in three)
            yield CellValue(row.cell, over_repeats(pair, ratios), tuple(ids))


def _handovers(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if row is not None and row.turns is not None and row.turns.handover_p50_s and pair.evidence == REPLAY:
            yield CellValue(row.cell, row.turns.handover_p50_s, (row.record_ids,))


def is_null_control(pair: PairRow) -> bool:
    """Whether there is nothing to hide: one worker, or a group that the suite calls null."""
    return pair.key.num_workers == 1 or pair.group.startswith("null")


def is_papers_case(pair: PairRow) -> bool:
    """Whether it is ImageNet classification as in the abstract: identical jobs of its networks, replayed, on a rate."""
    networks = {workload.partition("-")[0] for workload, *_ in pair.work}
    return pair.group.startswith("imagenet") and len(networks) == 1 and networks <= set(PAPERS_NETWORKS)


def _replayed(pair: PairRow, _: SharingRow) -> bool:
    wide = pair.evidence == REPLAY and pair.key.num_workers in (4, 8)
    return wide and (pair.axis == RHO or (pair.is_mixed and not pair.axis))


def _real(pair: PairRow, _: SharingRow) -> bool:
    return pair.evidence != REPLAY and pair.key.num_hosts == 2 and not pair.key.num_virtual


def _horovod(pair: PairRow, row: SharingRow) -> bool:
    return _real(pair, row) and row.systems == ("horovod",)


def _by_hosts(pair: PairRow, _: SharingRow) -> bool:
    """The sweep of workers at the α of real cards; those of α and ρ are curves of their own."""
    return pair.key.kind == PACED and pair.group.split("-")[0] == "hosts"


def _of_many(pair: PairRow, row: SharingRow) -> bool:
    """So many workers that starts, which are link time on the paced fabric and no bytes, are a tenth of the link's."""
    return _by_hosts(pair, row) and pair.at == MANY_WORKERS


def _of_few(pair: PairRow, row: SharingRow) -> bool:
    return _by_hosts(pair, row) and pair.at != MANY_WORKERS


_SHARE = "Measured gain over the one that T* predicts, from the costs of the same repeat"
_LIMIT = "Share of the hard limit max(Σc, Σ bytes/rate, longest chain of a job) that is used"
CLAIMS: tuple[PairClaim, ...] = (
    PairClaim(
        claim="Paced, 2 to 16 workers, α = 20 µs: at least 0.97 of the limit that no turns can pass",
        quantity=_LIMIT,
        select=shares(of_limit, _of_few),
        formula=Formula.LIMIT_SHARE,
        low=0.97,
    ),
    PairClaim(
        claim=f"Paced, {MANY_WORKERS} workers, α = 20 µs: at least 0.97 of the limit that no turns can pass",
        quantity=_LIMIT,
        select=shares(of_limit, _of_many),
        formula=Formula.LIMIT_SHARE,
        low=0.97,
    ),
    PairClaim(
        claim="Paced, 2 to 64 workers, α = 20 µs: at least 0.97 of the gain that T* predicts",
        quantity=_SHARE,
        select=shares(of_fifo, _by_hosts),
        formula=Formula.FIFO_SHARE,
        low=0.97,
    ),
    PairClaim(
        claim="Replay among 4 or 8 workers: at least 0.97 of the limit that no turns can pass",
        quantity=_LIMIT,
        select=shares(of_limit, _replayed),
        formula=Formula.LIMIT_SHARE,
        low=0.97,
    ),
    PairClaim(
        claim="Replay among 4 or 8 workers, ρ sweeps, mixed pairs: at least 0.96 of the gain that T* predicts",
        quantity=_SHARE,
        select=shares(of_fifo, _replayed),
        formula=Formula.FIFO_SHARE,
        low=0.96,
    ),
    PairClaim(
        claim="Real compute on 2 hosts, the pair of quick too: at least 0.90 of the gain that T* predicts",
        suites=(NAME, "quick"),
        quantity=_SHARE,
        select=shares(of_fifo, _real),
        formula=Formula.FIFO_SHARE,
        low=0.90,
    ),
    PairClaim(
        claim="Real Horovod jobs on 2 hosts: at least 0.90 of the gain that T* predicts",
        quantity=_SHARE,
        select=shares(of_fifo, _horovod),
        formula=Formula.FIFO_SHARE,
        low=0.90,
    ),
    PairClaim(
        claim="Sockets of 2 and of 4 emulated hosts gain what the paced link does at their α: 1.00 ± 0.05",
        quantity="Gain on sockets over the paced link's",
        select=_against_model,
        formula=Formula.AT_ALPHA,
        low=0.95,
        high=1.05,
    ),
    PairClaim(
        claim="Holding the turn through communication gains nothing: 1.00 ± 0.03",
        quantity="Gain of hold",
        select=gains(HOLD, lambda _: True),
        formula=Formula.GAIN,
        low=0.97,
        high=1.03,
    ),
    PairClaim(
        claim="With nothing to hide, crossover loses at most 3 %",
        quantity="Gain of crossover in the null controls",
        select=gains(CROSSOVER, is_null_control),
        formula=Formula.GAIN,
        low=0.97,
    ),
    PairClaim(
        claim="Mixed pairs gain over running one after the other",
        quantity="Gain of crossover",
        select=gains(CROSSOVER, lambda pair: pair.is_mixed),
        formula=Formula.GAIN,
        low=1.0,
    ),
    PairClaim(
        claim="Link turns in order are never worse than a fairly shared link",
        quantity="Gain with link turns over gain with a fair link",
        select=against(FAIR_WAY),
        formula=Formula.GAIN_RATIO,
        low=1.0 - NOISE,
    ),
    PairClaim(
        claim="Link turns in order beat a fairly shared link where jobs differ",
        quantity="Gain with link turns over gain with a fair link in mixed pairs",
        select=against(FAIR_WAY, lambda pair: pair.is_mixed),
        formula=Formula.GAIN_RATIO,
        low=1.0,
    ),
    PairClaim(
        claim=f"Crossover beats the median of naive co-location over {FEWEST_PHASES} or more start offsets",
        quantity="Gain of crossover over that median",
        select=_against_phases,
        formula=Formula.PHASES,
        low=1.0,
    ),
    PairClaim(
        claim="The token is never worse than a slot barrier",
        quantity="Gain of crossover over that of the slot barrier",
        select=against(BARRIER),
        formula=Formula.GAIN_RATIO,
        low=1.0 - NOISE,
    ),
    PairClaim(
        claim="Two jobs in turns beat one job with twice the batch",
        quantity="Samples/s of crossover over those of the one job",
        select=_against_rival,
        formula=Formula.RIVAL,
        low=1.0,
    ),
    PairClaim(
        claim=f"ImageNet networks gain the {100 * (PAPERS_SPEEDUP - 1):.0f} % of the abstract's claim, at every rate",
        quantity="Gain of crossover",
        select=gains(CROSSOVER, is_papers_case),
        formula=Formula.GAIN,
        low=PAPERS_SPEEDUP,
    ),
    PairClaim(
        claim="Half of the hand-overs in replay take at most 100 µs, on the host where they are slowest",
        quantity="Median hand-over",
        select=_handovers,
        formula=Formula.HANDOVER,
        high=100e-6,
        scale=1e6,
        unit=" µs",
    ),
)


def _is_papers_sweep(sweep: SweepRow) -> bool:
    return sweep.axis == RATE and is_papers_case(sweep.pairs[0])


STUDY = Study(
    suite=NAME,
    claims=claims,
    figures=(PaperFigure(name="papers-case", caption=_PAPER, level=PAPERS_SPEEDUP, accepts=_is_papers_sweep),),
)
