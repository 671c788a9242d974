"""What is claimed of jobs on one real GPU, judged from the records alone."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.claims import ClaimRow, Formula, judge
from analysis.sharing.rows import CROSSOVER, NAIVE, PairRow
from analysis.steps.claims import StepClaim, over
from analysis.study import Evidence, Study
from suites.pair_rows import PairClaim, against, gains, judged, of_limit, shares
from suites.step_rows import SPEED, anywhere, is_fifo, parts

NAME = "gpu"


def _waits_for_events(pair: PairRow) -> bool:
    return pair.group.startswith("event")


PAIRS = (
    PairClaim(
        claim="Turns on one GPU use at least 0.97 of the limit that no turns can pass",
        quantity="Share of the hard limit max(Σc, Σ bytes/rate, longest chain of a job) that is used",
        select=shares(of_limit, lambda pair, _: _waits_for_events(pair)),
        formula=Formula.LIMIT_SHARE,
        low=0.97,
    ),
    PairClaim(
        claim="Two jobs in turns on one GPU gain over running one after the other",
        quantity="Gain of crossover",
        select=gains(CROSSOVER, _waits_for_events),
        formula=Formula.GAIN,
        low=1.0,
    ),
    PairClaim(
        claim="Turns on one GPU beat the GPU's own division between two processes",
        quantity="Gain of crossover over that of naive sharing",
        select=against(NAIVE, _waits_for_events),
        formula=Formula.GAIN_RATIO,
        low=1.0,
    ),
)
BESIDE_DDP = StepClaim(
    claim="On a GPU the engine is at least 0.97 times as fast as torch DDP",
    quantity=SPEED,
    select=over(is_fifo, lambda _, other: "torch-ddp" in parts(other), anywhere),
    low=0.97,
)


def claims(evidence: Evidence) -> Iterator[ClaimRow]:
    """Turns first, then the engine beside DDP, each job by itself."""
    yield from judged(PAIRS, evidence, NAME)
    yield judge(BESIDE_DDP, list(BESIDE_DDP.select([row for row in evidence.steps if row.place.suite == NAME])))


STUDY = Study(suite=NAME, curves=True, claims=claims)
