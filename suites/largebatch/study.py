"""What the papers claim of large batches, judged where each seed's run ended, paired by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analysis.claims import ClaimRow, Level, Measured, judge
from analysis.stats import paired_ratio
from analysis.study import Evidence, Study
from analysis.targets.rows import HeldOutEnd, TargetRow, TargetStudy
from suites.largebatch.cells import BASE_BATCH, DIGITS, TEXT, LargeBatchTask
from suites.largebatch.grid import NAME

CHANCE = 0.1  # accuracy of guessing a digit
KEPT = 0.99  # of the base batch's accuracy, or of the way in loss


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """`rule` at each of `batches` against `against` there, or against itself at the base batch where that is empty."""

    claim: str
    task: LargeBatchTask
    rule: str
    batches: tuple[int, ...]
    against: str
    low: float


CLAIMS = (
    BatchClaim(
        "The one-hour recipe (Goyal et al., 2017) keeps the base batch's accuracy", DIGITS, "one-hour",
        DIGITS.batches[1:], "sgd at base", KEPT,
    ),
    BatchClaim(
        "LARS (You et al., 2017) ends above SGD scaled and warmed up at the largest batch", DIGITS, "lars",
        DIGITS.batches[-1:], "one-hour", 1.0,
    ),
    BatchClaim(
        "LARS ends above SGD with a searched rate at the largest batch", DIGITS, "lars", DIGITS.batches[-1:], "sgd", 1.0
    ),
    BatchClaim("LARS keeps the base batch's accuracy", DIGITS, "lars", DIGITS.batches[1:], "", KEPT),
    BatchClaim("LAMB (You et al., 2020) keeps the base batch's loss", TEXT, "lamb", TEXT.batches[-1:], "", KEPT),
    BatchClaim(
        "LAMB ends below the loss of SGD with a searched rate at the largest batch", TEXT, "lamb", TEXT.batches[-1:],
        "sgd", 1.0,
    ),
)  # fmt: skip


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Each claim; the whole interval has to lie above its level."""
    if NAME not in evidence.suites:
        return
    for own in CLAIMS:
        better = "held-out accuracy over" if own.task is DIGITS else "held-out loss under"
        against = {"": "its own at the base batch", "sgd at base": "SGD's at the base batch"}.get(
            own.against, own.against
        )
        level = Level(claim=own.claim, quantity=f"{better} {against}", low=own.low, unit="×")
        yield judge(level, list(_measured(evidence, own)))


def _measured(evidence: Evidence, claim: BatchClaim) -> Iterator[Measured]:
    for batch in claim.batches:
        row = _row(evidence, claim.task, batch, claim.rule)
        if claim.against in ("", "sgd at base"):
            other = _row(evidence, claim.task, BASE_BATCH, claim.against.partition(" ")[0] or claim.rule)
        else:
            other = _row(evidence, claim.task, batch, claim.against)
        if row is None or other is None:
            continue
        pairs = list(_pairs(row, other, by_loss=claim.task is TEXT))
        if pairs:
            cell = f"{claim.rule}, batch {batch}, {claim.task.workload.label}"
            yield Measured(cell, paired_ratio([a for a, _ in pairs], [b for _, b in pairs]))


def _row(evidence: Evidence, task: LargeBatchTask, batch: int, rule: str) -> TargetRow | None:
    for study in evidence.targets:
        if (study.suite, study.workload, study.batch_size) == (NAME, task.workload.label, batch):
            return next((row for row in study.rows if _rule_of(row, study) == rule), None)
    return None


def _rule_of(row: TargetRow, study: TargetStudy) -> str:
    name = row.optimizer.partition("(")[0]
    return "one-hour" if name == "sgd" and row is not study.dense else name


def _pairs(row: TargetRow, other: TargetRow, *, by_loss: bool) -> Iterator[tuple[float, float]]:
    """The better the larger: accuracy over the other's, or the other's loss over its own.

    A seed that one of the two ended without has diverged there: it guesses, at an infinite loss.
    """
    own, others = ({end.seed: end for end in side.ends} for side in (row, other))
    for seed in sorted(own.keys() | others.keys()):
        end, peer = (side.get(seed, HeldOutEnd(seed=seed, accuracy=CHANCE, loss=math.inf)) for side in (own, others))
        yield (peer.loss, end.loss) if by_loss else (end.accuracy, peer.accuracy)


STUDY = Study(suite=NAME, claims=claims)
