"""What the papers claim of weaker consistency, judged by the time to BSP's target on the virtual clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge, judge_beside
from analysis.problems.rows import ProblemRow
from analysis.stats import ratio_by_repeat
from analysis.study import Evidence, Study
from suites.consistency.problems import HOGWILD_WORKERS, LASSOS, NAME

Problems = Mapping[tuple[str, str], ProblemRow]  # by group and label


def _sooner(evidence: Evidence, policy: str, cluster: str) -> Iterator[CellValue]:
    """BSP's time to the target over the policy's, paired by seed."""
    for study in evidence.targets:
        if study.suite != NAME or cluster not in study.where:
            continue
        dense = study.dense.times_s_by_repeat
        for row in study.rows:
            ratio = ratio_by_repeat(dense, row.times_s_by_repeat)
            if _is(row.strategy, policy) and ratio is not None:
                ids = study.dense.record_ids, row.record_ids
                yield CellValue(f"{row.strategy}, {study.title}", ratio, ids)


def _is(strategy: str, policy: str) -> bool:
    """A whole text, or a method by its name whatever its parameters are, with nothing beside it."""
    return strategy == policy or ("+" not in strategy and strategy.partition("(")[0] == policy)


CLAIMS = (
    ("ssp", "straggler", "SSP (Ho et al., NIPS 2013) reaches BSP's target sooner with one straggler"),
    (
        "dynssp(staleness=3)",
        "straggler",
        "DynSSP (Jiang et al., SIGMOD 2017) reaches BSP's target sooner with one straggler",
    ),
    ("asp", "straggler", "ASP reaches BSP's target sooner with one straggler"),
    ("ssp", "jitter", "SSP reaches BSP's target sooner where steps vary"),
)


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Each claim over the clusters that it is about."""
    if NAME not in evidence.suites:
        return
    for policy, cluster, claim in CLAIMS:
        level = Level(
            claim=claim,
            quantity="BSP's time to the target over its own",
            low=1.0,
            formula=Formula.SOONER,
            unit="×",
        )
        yield judge(level, list(_sooner(evidence, policy, cluster)))
    problems = {(row.group, row.label): row for row in evidence.problems if row.suite == NAME}
    yield from _of_problems(problems)


def _of_problems(rows: Problems) -> Iterator[ClaimRow]:
    """Hogwild! and STRADS on the papers' kinds of problem."""
    several = [f"{count}-workers" for count in HOGWILD_WORKERS if count > 1]
    level = Level(
        claim="Hogwild! (Recht et al., NIPS 2011): without locks the loss ends within 1 % of the serial run's",
        quantity="Final loss over that of one worker", high=1.01, formula=Formula.OBJECTIVE, unit="×",
    )  # fmt: skip
    serial = [("sparse-logistic", label, "1-worker") for label in several]
    yield judge_beside(level, rows, serial, ProblemRow.final_over)
    level = Level(
        claim="STRADS (Lee et al., NIPS 2014): priority and check need fewer rounds than blocks by chance",
        quantity="Rounds over those by chance", high=1.0, formula=Formula.ROUNDS, unit="×",
    )  # fmt: skip
    chance = [(group, "petuum", "by-chance") for group in LASSOS]
    yield judge_beside(level, rows, chance, ProblemRow.rounds_over)
    level = Level(
        claim="STRADS: where columns are alike, the check of dependencies needs fewer rounds than priority alone",
        quantity="Rounds over those without the check, all where that diverges", high=1.0,
        formula=Formula.ROUNDS, unit="×",
    )  # fmt: skip
    yield judge_beside(level, rows, [("lasso-alike", "petuum", "no-check")], ProblemRow.rounds_over)
    level = Level(
        claim="Where columns are alike, staleness 2 ends 1 % higher or more: the check does not reach rounds under way",
        quantity="Final objective over that without staleness", low=1.01, formula=Formula.OBJECTIVE, unit="×",
    )  # fmt: skip
    yield judge_beside(level, rows, [("lasso-alike", "staleness-2", "petuum")], ProblemRow.final_over)


STUDY = Study(suite=NAME, claims=claims)
