"""What the papers claim of weaker consistency, judged by the time to BSP's target on the virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge
from analysis.problems.rows import ProblemRow
from analysis.stats import Interval, ratio_by_repeat
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
    """A whole text, or a method by its name whatever its parameters are."""
    return strategy == policy or strategy.partition("(")[0] == policy


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
    ends, sooner = (Formula.OBJECTIVE, ProblemRow.final_over), (Formula.ROUNDS, ProblemRow.rounds_over)
    several = [f"{count}-workers" for count in HOGWILD_WORKERS if count > 1]
    yield _beside(
        rows, "Hogwild! (Recht et al., NIPS 2011): without locks the loss ends within 1 % of the serial run's",
        "Final loss over that of one worker", ends,
        [("sparse-logistic", label, "1-worker") for label in several], high=1.01,
    )  # fmt: skip
    yield _beside(
        rows, "STRADS (Lee et al., NIPS 2014): priority and check need fewer rounds than blocks by chance",
        "Rounds over those by chance", sooner, [(group, "petuum", "by-chance") for group in LASSOS], high=1.0,
    )  # fmt: skip
    yield _beside(
        rows, "STRADS: where columns are alike, the check of dependencies needs fewer rounds than priority alone",
        "Rounds over those without the check", sooner, [("lasso-alike", "petuum", "no-check")], high=1.0,
    )  # fmt: skip
    yield _beside(
        rows, "Where columns are alike, staleness 2 ends 1 % higher or more: the check does not reach rounds under way",
        "Final objective over that without staleness", ends,
        [("lasso-alike", "staleness-2", "petuum")], low=1.01,
    )  # fmt: skip


def _beside(
    rows: Problems,
    claim: str,
    quantity: str,
    figure: tuple[Formula, Callable[[ProblemRow, ProblemRow], Interval]],
    cells: Sequence[tuple[str, str, str]],
    *,
    low: float | None = None,
    high: float | None = None,
) -> ClaimRow:
    """A figure of the first label over that of the second, by group."""
    formula, over = figure
    level = Level(claim=claim, quantity=quantity, low=low, high=high, formula=formula, unit="×")
    found = []
    for group, label, other in cells:
        own, base = rows.get((group, label)), rows.get((group, other))
        if own is not None and base is not None:
            found.append(CellValue(f"{group}, {label} over {other}", over(own, base), (own.ids, base.ids)))
    return judge(level, found)


STUDY = Study(suite=NAME, claims=claims)
