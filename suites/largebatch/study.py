"""What the papers claim of large batches, judged where each seed's run ended, paired by seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.stats import gap_by_repeat, ratio_by_repeat
from analysis.study import Evidence, Study
from analysis.targets.rows import TargetRow, TargetStudy
from suites.largebatch.cells import BASE_BATCH, DIGITS, ONE_HOUR, TEXT, LargeBatchTask
from suites.largebatch.grid import NAME

MOST_LOST = 0.01  # of accuracy, where a batch is said to keep it
LEAST_KEPT = 0.99  # the base batch's loss over the larger one's, likewise


@dataclass(frozen=True, slots=True)
class BatchClaim:
    """`rule` at each of `batches` against `against` there, or against itself at the base batch where that is empty. The
    rule `recipe` is that of `ONE_HOUR`, whatever the task.

    On digits `limit` is the most that its accuracy may lie below, on text the least of the other's loss over its own.
    """

    claim: str
    task: LargeBatchTask
    rule: str
    batches: tuple[int, ...]
    against: str
    limit: float


CLAIMS = (
    BatchClaim(
        "The one-hour recipe (Goyal et al., 2017) keeps the base batch's accuracy", ONE_HOUR, "recipe",
        DIGITS.batches[1:], "", MOST_LOST,
    ),
    BatchClaim(
        "SGD scaled and warmed up, without a decay, keeps the base batch's accuracy", DIGITS, "scaled",
        DIGITS.batches[1:], "sgd at base", MOST_LOST,
    ),
    BatchClaim(
        "LARS (You et al., 2017) with its decay ends above the one-hour recipe at the largest batch", DIGITS,
        "lars, decayed", DIGITS.batches[-1:], "recipe", 0.0,
    ),
    BatchClaim(
        "LARS ends above SGD scaled and warmed up at the largest batch", DIGITS, "lars", DIGITS.batches[-1:], "scaled",
        0.0,
    ),
    BatchClaim(
        "LARS ends above SGD with a searched rate at the largest batch", DIGITS, "lars", DIGITS.batches[-1:], "sgd", 0.0
    ),
    BatchClaim("LARS keeps the base batch's accuracy", DIGITS, "lars", DIGITS.batches[1:], "", MOST_LOST),
    BatchClaim(
        "LAMB (You et al., 2020) with its decay keeps the base batch's loss", TEXT, "lamb, decayed", TEXT.batches[-1:],
        "", LEAST_KEPT,
    ),
    BatchClaim("LAMB without a decay keeps the base batch's loss", TEXT, "lamb", TEXT.batches[-1:], "", LEAST_KEPT),
    BatchClaim(
        "LAMB ends below the loss of SGD with a searched rate at the largest batch", TEXT, "lamb", TEXT.batches[-1:],
        "sgd", 1.0,
    ),
)  # fmt: skip


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Each claim over its batches."""
    if NAME in evidence.suites:
        for own in CLAIMS:
            yield judge(_level(own), list(_measured(evidence, own)))


def _level(own: BatchClaim) -> Level:
    against = {"": "its own at the base batch", "sgd at base": "SGD's at the base batch"}.get(own.against, own.against)
    if own.task is not TEXT:
        return Level(
            claim=own.claim,
            quantity=f"accuracy of {against} less that of {own.rule}",
            high=own.limit,
            formula=Formula.SHORTFALL,
            scale=100.0,
            unit=" points",
        )
    return Level(
        claim=own.claim,
        quantity=f"loss of {against} over that of {own.rule}",
        low=own.limit,
        formula=Formula.FINAL_LOSS,
        unit="×",
    )


def _measured(evidence: Evidence, claim: BatchClaim) -> Iterator[CellValue]:
    for batch in claim.batches:
        row = _row(evidence, claim.task, batch, claim.rule)
        if claim.against in ("", "sgd at base"):
            other = _row(evidence, claim.task, BASE_BATCH, claim.against.partition(" ")[0] or claim.rule)
        else:
            other = _row(evidence, claim.task, batch, claim.against)
        if row is None or other is None:
            continue
        cell = f"{claim.rule}, batch {batch}, {claim.task.workload.label}"
        if claim.task is not TEXT:
            value = gap_by_repeat(other.accuracies_by_repeat, row.accuracies_by_repeat)
        else:
            value = ratio_by_repeat(other.losses_by_repeat, row.losses_by_repeat)
        if value is not None:
            yield CellValue(cell, value, (other.record_ids, row.record_ids))


def _row(evidence: Evidence, task: LargeBatchTask, batch: int, rule: str) -> TargetRow | None:
    label = (ONE_HOUR if rule == "recipe" else task).workload.label
    for study in evidence.targets:
        if (study.suite, study.workload, study.batch_size) == (NAME, label, batch):
            return next((row for row in study.rows if _rule_of(row, study) == rule), None)
    return None


def _rule_of(row: TargetRow, study: TargetStudy) -> str:
    name = row.optimizer.partition("(")[0]
    if name != "sgd":
        return f"{name}, decayed" if "+polynomial-decay(" in row.optimizer else name
    return "recipe" if "+step-decay(" in row.optimizer else "sgd" if row is study.dense else "scaled"


STUDY = Study(suite=NAME, claims=claims)
