"""What is held of convergence, judged seed by seed from exact records: the hypotheses of README.md, in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.stats import PREDICTION_ERROR, exactly, gap_by_repeat, ratio_by_repeat
from analysis.study import Evidence, Study
from analysis.targets.rows import ACCURACY, TargetRow, TargetStudy
from results.facts import Role
from suites.convergence.grid import SUITE

EXACT_ONES = ("fusion", "ordering")
HALVES = ("fp16", "bf16")
FEWER = {"DGC 0.1 %": "top-k 1 %", "gTop-k 1 %": "top-k 1 %"}  # by what sends more elements
KEEPS_THE_REST = ("+error-feedback", "+dgc(")  # sends later what it did not send
SAME = 0.01  # of accuracy, and of loss
Studies = Sequence[TargetStudy]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergenceClaim(Level):
    """A level with the cells that it is about."""

    select: Callable[[Studies], Iterator[CellValue]]


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Every hypothesis, over all tasks and numbers of ranks."""
    if SUITE.name in evidence.suites:
        studies = [study for study in evidence.targets if study.suite == SUITE.name]
        for claim in CLAIMS:
            yield judge(claim, list(claim.select(studies)))


def _same_losses(studies: Studies) -> Iterator[CellValue]:
    """The share of dense's seeds that end with the same held-out loss; an interval would forgive single ones."""
    for study, row in _rows(studies, EXACT_ONES):
        theirs, own = study.dense.losses_by_repeat, row.losses_by_repeat
        same = [own.get(repeat) == loss for repeat, loss in theirs.items()]
        value = exactly(sum(same) / len(same), len(same))
        yield CellValue(f"{row.name} ({study.title})", value, (study.dense.record_ids, row.record_ids))


def _losses(studies: Studies) -> Iterator[CellValue]:
    """Dense's last held-out loss over half's, where that is what a task is judged by."""
    for study, row in _rows(studies, HALVES):
        ratio = ratio_by_repeat(study.dense.losses_by_repeat, row.losses_by_repeat)
        if ratio is not None and study.metric != ACCURACY:
            yield CellValue(f"{row.name} ({study.title})", ratio, (study.dense.record_ids, row.record_ids))


def _shortfalls(studies: Studies) -> Iterator[CellValue]:
    for study, row in _rows(studies, HALVES):
        gap = gap_by_repeat(study.dense.accuracies_by_repeat, row.accuracies_by_repeat)
        if gap is not None and study.metric == ACCURACY:
            yield CellValue(f"{row.name} ({study.title})", gap, (study.dense.record_ids, row.record_ids))


def _steps_over_dense(studies: Studies) -> Iterator[CellValue]:
    for study in studies:
        for row in study.rows:
            ratio = ratio_by_repeat(row.steps_by_repeat, study.dense.steps_by_repeat)
            if ratio is not None and any(part in row.strategy for part in KEEPS_THE_REST):
                yield CellValue(f"{row.name} ({study.title})", ratio, (row.record_ids, study.dense.record_ids))


def _steps_over_more(studies: Studies) -> Iterator[CellValue]:
    for study, row in _rows(studies, tuple(FEWER)):
        for more in (other for other in study.rows if other.name == FEWER[row.name]):
            ratio = ratio_by_repeat(row.steps_by_repeat, more.steps_by_repeat)
            if ratio is not None:
                ids = row.record_ids, more.record_ids, study.dense.record_ids
                yield CellValue(f"{row.name} over {more.name} ({study.title})", ratio, ids)


def _times(method: str) -> Callable[[Studies], Iterator[CellValue]]:
    """The better of float32's and half's predicted time over its own; 0 for a seed that never gets there."""

    def select(studies: Studies) -> Iterator[CellValue]:
        for study, row in _rows(studies, (method,)):
            rivals = [one for one in study.rows if one is study.dense or one.role is Role.RIVAL]
            theirs = [one.times_s_by_repeat for one in rivals]
            best = {repeat: min(own[repeat] for own in theirs) for repeat in set.intersection(*map(set, theirs))}
            ratio = ratio_by_repeat(best, row.times_s_by_repeat)
            if ratio is not None:
                ids = (*(one.record_ids for one in rivals), row.record_ids)
                yield CellValue(f"{row.name} ({study.title})", ratio, ids)

    return select


def _rows(studies: Studies, names: Sequence[str]) -> Iterator[tuple[TargetStudy, TargetRow]]:
    return ((study, row) for study in studies for row in study.rows if row.name in names)


def _worth(method: str) -> ConvergenceClaim:
    return ConvergenceClaim(
        claim=f"At 200 Mbit/s {method} is at the target sooner than float32 and half: bytes saved are worth steps lost",
        quantity="Predicted time of the better of float32 and half over its own, by more than the predictor's error",
        select=_times(method),
        formula=Formula.SOONER,
        low=1 + PREDICTION_ERROR,
        unit="×",
    )


CLAIMS = (
    ConvergenceClaim(
        claim="Fusion and ordering change no number: every seed ends with the loss of dense training",
        quantity="Share of seeds that end with the held-out loss of dense",
        select=_same_losses,
        formula=Formula.SAME_LOSS,
        low=1.0,
    ),
    ConvergenceClaim(
        claim="Half precision ends within a point of dense training's accuracy",
        quantity="Accuracy of dense at the end less its own",
        select=_shortfalls,
        formula=Formula.SHORTFALL,
        high=SAME,
        scale=100.0,
        unit=" points",
    ),
    ConvergenceClaim(
        claim="Half precision ends within 1 % of dense training's loss on text",
        quantity="Held-out loss of dense at the end over its own",
        select=_losses,
        formula=Formula.FINAL_LOSS,
        low=1 - SAME,
        unit="×",
    ),
    ConvergenceClaim(
        claim="Lossy compression that sends later what it left out reaches the target in no fewer steps than dense",
        quantity="Its steps over those of dense",
        select=_steps_over_dense,
        formula=Formula.STEPS_TO_TARGET,
        low=1.0,
        unit="×",
    ),
    ConvergenceClaim(
        claim="The fewer elements are sent, the later: DGC at 0.1 % and gTop-k take no fewer steps than top-k at 1 %",
        quantity="Their steps over those of top-k",
        select=_steps_over_more,
        formula=Formula.STEPS_TO_TARGET,
        low=1.0,
        unit="×",
    ),
    # Of those without a warm-up, whose predicted step is not that of all their steps, the least and the most lossy.
    _worth("QSGD 4 bit"),
    _worth("top-k 1 %"),
)
STUDY = Study(suite=SUITE.name, claims=claims)
