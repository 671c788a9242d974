"""Each headline in three claims: over the paper's baseline, over the best dense one, and what the setting leaves.

The third says why a first one is missed: without any communication a step takes what one worker alone takes, and no
method is faster. Where even that is not as much faster as the paper claims, the claim needs other hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from analysis.claims import CellValue, ClaimRow, Formula, Level, judge, out_of_reach
from analysis.sharing.rows import CROSSOVER, PairRow
from analysis.stats import bootstrap_interval
from analysis.steps.claims import fastest, speedup
from analysis.steps.rows import StepRow
from analysis.study import Evidence, Study
from analysis.wording import number
from baselines.text import split_parts
from suites.crossover.study import PAPERS_SPEEDUP, is_papers_case
from suites.headlines.grid import NAME
from suites.headlines.papers import HEADLINES, OUT_OF_REACH, OVERLAP, SERVERS, Headline, PaperSetting
from suites.step_rows import SPEED

TIMES = "×"
PLAIN_SUMS = frozenset(
    {"unfused", "single-bucket", "fixed-buckets", "tensor-fusion", "mg-wfbp", OVERLAP, SERVERS},
)
Select = Callable[[Headline, Sequence[StepRow]], Iterator[CellValue]]


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Every claim with its verdict; none where the suite was not asked for."""
    if NAME not in evidence.suites:
        return
    for headline in HEADLINES:
        here = rows_of(headline.place, evidence.steps)
        yield judge(_as_the_paper(headline), list(_over_baseline(headline, here)))
        yield judge(_at_its_best(headline), list(_over_best(headline, here)))
        yield judge(_room(headline), list(_left(headline, here)))
    yield judge(_CROSSOVER, list(_crossover_gains(evidence.pairs)))
    for claim, reason in OUT_OF_REACH:
        yield out_of_reach(claim, reason)


def rows_of(place: PaperSetting, rows: Iterable[StepRow]) -> list[StepRow]:
    """What was measured in a place."""
    wanted = (NAME, f"{place.network}-replay", place.batch_size, place.num_workers, place.gbit)
    return [row for row in rows if _where(row) == wanted and row.step_time_s is not None]


def _where(row: StepRow) -> tuple[str, str, int, int, float | None]:
    own = row.place
    return own.suite, own.workload, own.batch_size, own.num_workers, own.gbit


def row_of(text: str, rows: Iterable[StepRow]) -> StepRow | None:
    """The row of a strategy, known by its plug-ins: each of the suite's differs in these, bucket sizes apart."""
    names = frozenset(part.partition("(")[0] for part in split_parts(text))
    return next((row for row in rows if row.strategy.names == names), None)


def _as_the_paper(headline: Headline) -> Level:
    return Level(
        claim=f"{headline.system}: {headline.says} ({headline.cited})",
        quantity=f"{SPEED}, over the baseline as the paper had it; {headline.differs}",
        low=headline.gain,
        formula=Formula.SPEED_UP,
        unit=TIMES,
    )


def _at_its_best(headline: Headline) -> Level:
    return Level(
        claim=f"{headline.system}: faster than the best dense method in the same setting",
        quantity=f"{SPEED}, over the fastest of plain sums, packed and overlapped",
        low=1.0,
        formula=Formula.SPEED_UP,
        unit=TIMES,
    )


def _room(headline: Headline) -> Level:
    return Level(
        claim=f"{headline.system}: the setting leaves {number(headline.gain)} times to gain at all",
        quantity="Step of the paper's baseline over that of a worker that does not communicate",
        low=headline.gain,
        formula=Formula.OVER_MEDIAN,
        unit=TIMES,
    )


def _over_baseline(headline: Headline, rows: Sequence[StepRow]) -> Iterator[CellValue]:
    yield from _faster(headline, row_of(headline.own, rows), row_of(headline.baseline, rows))


def _over_best(headline: Headline, rows: Sequence[StepRow]) -> Iterator[CellValue]:
    """Over the fastest rival that sends plain sums in order of readiness."""
    own = row_of(headline.own, rows)
    yield from _faster(
        headline, own, fastest(row for row in rows if row is not own and row.strategy.names <= PLAIN_SUMS)
    )


def _faster(headline: Headline, own: StepRow | None, rival: StepRow | None) -> Iterator[CellValue]:
    ratio = speedup(own, rival) if own is not None and rival is not None else None
    if own is not None and rival is not None and ratio is not None:
        yield CellValue(f"{own.name} over {rival.name} ({headline.place.describe()})", ratio, (rival.ids, own.ids))


def _left(headline: Headline, rows: Sequence[StepRow]) -> Iterator[CellValue]:
    """The paper's baseline over one worker alone."""
    row = row_of(headline.baseline, rows)
    if row is not None and row.single_s:
        ratios = [step_s / row.single_s for _, step_s in row.by_repeat]
        name = f"no communication over {row.name} ({headline.place.describe()})"
        yield CellValue(name, bootstrap_interval(ratios), (row.ids, row.single_ids))


_CROSSOVER = Level(
    claim="CrossoverScheduler: 20 % speed-up for image classification on ImageNet (Luo et al., arXiv:2103.07974, "
    "abstract)",
    quantity="Gain of two jobs in turns over running one after the other; 8 workers, from the records of the suite "
    "crossover",
    low=PAPERS_SPEEDUP,
    some=True,
    formula=Formula.GAIN,
    unit=TIMES,
)


def _crossover_gains(pairs: Sequence[PairRow]) -> Iterator[CellValue]:
    for pair in pairs:
        row = pair.row(CROSSOVER)
        if row is not None and row.throughput is not None and is_papers_case(pair):
            yield CellValue(row.cell, row.throughput, (pair.alone_ids, row.record_ids))


STUDY = Study(suite=NAME, curves=True, references=("unfused",), claims=claims)
