"""What is claimed of jobs on one real GPU, judged from the records alone."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.sharing.rows import CROSSOVER, NAIVE, PairRow
from analysis.steps.claims import by_place, speedup
from analysis.study import Evidence, Study
from suites.pair_rows import PairClaim, against, gains, judged, of_limit, shares
from suites.step_rows import is_fifo, parts

NAME = "gpu"


def _in_float32(pair: PairRow) -> bool:
    return pair.group.startswith("event") and "bfloat16" not in pair.group


def _in_bfloat16(pair: PairRow) -> bool:
    return pair.group.startswith("event-bfloat16")


CLAIMS = (
    PairClaim(
        claim="Turns on one GPU in float32 use at least 0.97 of the limit that no turns can pass",
        quantity="Share of the hard limit max(Σc, Σ bytes/rate, longest chain of a job) that is used",
        select=shares(of_limit, lambda pair, _: _in_float32(pair)),
        formula=Formula.LIMIT_SHARE,
        low=0.97,
    ),
    PairClaim(
        claim="Two jobs in turns on one GPU gain over running one after the other",
        quantity="Gain of crossover",
        select=gains(CROSSOVER, lambda pair: pair.group.startswith("event")),
        formula=Formula.GAIN,
        low=1.0,
    ),
    PairClaim(
        claim="In float32 turns beat the GPU's own division between two processes",
        quantity="Gain of crossover over that of naive sharing",
        select=against(NAIVE, _in_float32),
        formula=Formula.GAIN_RATIO,
        low=1.0,
    ),
    PairClaim(
        claim="In bfloat16 turns beat the GPU's own division between two processes",
        quantity="Gain of crossover over that of naive sharing",
        select=against(NAIVE, _in_bfloat16),
        formula=Formula.GAIN_RATIO,
        low=1.0,
    ),
)


def claims(evidence: Evidence) -> Iterator[ClaimRow]:
    """Turns first, then the engine beside DDP, each job by itself."""
    yield from judged(CLAIMS, evidence, NAME)
    level = Level(
        claim="On a GPU the engine takes at most 1.03 times the step of torch DDP",
        quantity="Our step over DDP's, repeat by repeat",
        high=1.03,
        formula=Formula.SPEED_UP,
    )
    yield judge(level, list(_beside_ddp(evidence)))


def _beside_ddp(evidence: Evidence) -> Iterator[CellValue]:
    for place, rows in by_place([row for row in evidence.steps if row.place.suite == NAME]).items():
        for own in filter(is_fifo, rows):
            for rival in (row for row in rows if "torch-ddp" in parts(row)):
                if (ratio := speedup(rival, own)) is not None:
                    yield CellValue(f"{own.name} over {rival.name} ({place.describe()})", ratio, (own.ids, rival.ids))


STUDY = Study(suite=NAME, curves=True, claims=claims)
