"""Each headline in three claims: over the paper's baseline, over the best dense one, and what the setting leaves.

What was not measured is judged by the virtual clock, which is exact.

The third says why a first one is missed: without any communication a step takes what one worker alone takes, and no
method is faster. Where even that is not as much faster as the paper claims, the claim needs other hardware.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

from analysis.cells import OURS
from analysis.claims import CellValue, ClaimRow, Formula, Level, judge, out_of_reach
from analysis.sharing.rows import CROSSOVER, PairRow
from analysis.stats import foretold, median_interval
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


def claims(evidence: Evidence) -> Iterable[ClaimRow]:
    """Every claim with its verdict; none where the suite was not asked for."""
    if NAME not in evidence.suites:
        return
    judged = set[tuple[PaperSetting, frozenset[str]]]()  # two papers' baselines make two headlines of one method
    for headline in HEADLINES:
        here = rows_of(headline.place, evidence.steps)
        own, baseline = row_of(headline.own, here), row_of(headline.baseline, here)
        dense = [row for row in here if row is not own and row.strategy.names <= PLAIN_SUMS and row.system == OURS]
        yield _faster(_as_the_paper(headline), own, baseline)
        if (method := (headline.place, names_of(headline.own))) not in judged:
            judged.add(method)
            best = _fastest(dense, measured=own is not None and bool(own.by_repeat))
            yield _faster(_at_its_best(headline), own, best)
        yield _left(headline, _room(headline), baseline)
    yield judge(_CROSSOVER, list(_crossover_gains(evidence.pairs)))
    for claim, reason in OUT_OF_REACH:
        yield out_of_reach(claim, reason)


def rows_of(place: PaperSetting, rows: Iterable[StepRow]) -> list[StepRow]:
    """What was measured or predicted in a place."""
    wanted = (NAME, f"{place.network}-replay", place.batch_size, place.num_workers, place.gbit)
    return [row for row in rows if _where(row) == wanted]


def _where(row: StepRow) -> tuple[str, str, int, int, float | None]:
    own = row.place
    return own.suite, own.workload, own.batch_size, own.num_workers, own.gbit


def names_of(text: str) -> frozenset[str]:
    """A strategy's plug-ins, by which it is known: each of the suite's differs in these, bucket sizes apart."""
    return frozenset(part.partition("(")[0] for part in split_parts(text))


def row_of(text: str, rows: Iterable[StepRow]) -> StepRow | None:
    """The row of a strategy."""
    names = names_of(text)
    return next((row for row in rows if row.strategy.names == names and row.system == OURS), None)


def _as_the_paper(headline: Headline) -> Level:
    return Level(
        claim=f"{headline.system}: {headline.says} ({headline.cited})",
        quantity=f"over the baseline as the paper had it; {headline.differs}",
        low=headline.gain,
        unit=TIMES,
    )


def _at_its_best(headline: Headline) -> Level:
    return Level(
        claim=f"{headline.system}: faster than the best dense method in the same setting",
        quantity="over the fastest of plain sums, packed and overlapped",
        low=1.0,
        unit=TIMES,
    )


def _room(headline: Headline) -> Level:
    return Level(
        claim=f"{headline.system}: the setting leaves {number(headline.gain)} times to gain at all",
        quantity="of the paper's baseline over that of a worker that does not communicate",
        low=headline.gain,
        unit=TIMES,
    )


def _fastest(rows: Sequence[StepRow], *, measured: bool) -> StepRow | None:
    """The fastest of those that were measured, or by the virtual clock."""
    if measured:
        return fastest(row for row in rows if row.by_repeat)
    return min((row for row in rows if row.predicted_s), key=lambda row: row.predicted_s or 0.0, default=None)


def _faster(level: Level, own: StepRow | None, rival: StepRow | None) -> ClaimRow:
    """The rival's step over its own, measured if both were."""
    ratio = speedup(own, rival) if own is not None and rival is not None else None
    if own is None or rival is None or ratio is None:
        return _on_clock(level, own, rival)
    quantity = f"{SPEED}, {level.quantity}"
    cell = CellValue(f"{own.name} over {rival.name} ({own.place.describe()})", ratio, (rival.ids, own.ids))
    return judge(replace(level, quantity=quantity, formula=Formula.SPEED_UP), [cell])


def _left(headline: Headline, level: Level, baseline: StepRow | None) -> ClaimRow:
    """The paper's baseline over one worker alone. By the virtual clock it is the share of computation in the step: a
    worker alone may have been measured elsewhere, and that is not divided by what is predicted."""
    if baseline is None or baseline.single_s is None:
        return judge(level, [])
    name = f"no communication over {baseline.name} ({baseline.place.describe()})"
    if baseline.by_repeat:
        ratios = median_interval([step_s / baseline.single_s for _, step_s in baseline.by_repeat])
        cell = CellValue(name, ratios, (baseline.ids, baseline.single_ids))
        return judge(replace(level, quantity=f"Step {level.quantity}", formula=Formula.OVER_MEDIAN), [cell])
    share = foretold(min(1.0, (baseline.phases.compute_s or 0.0) / (baseline.predicted_s or inf)))
    return judge(
        replace(
            level,
            quantity=f"Predicted share of computation in the step of the paper's baseline, at most 1/{headline.gain:g}",
            low=None,
            high=1 / headline.gain,
            formula=Formula.PREDICTED_EFFICIENCY,
            unit="",
        ),
        [CellValue(name, share, (baseline.ids, baseline.ids))],
    )


def _on_clock(level: Level, own: StepRow | None, rival: StepRow | None) -> ClaimRow:
    """The rival's predicted step over its own."""
    cells = []
    if own is not None and rival is not None and own.predicted_s and rival.predicted_s:
        name = f"{own.name} over {rival.name} ({own.place.describe()})"
        cells.append(CellValue(name, foretold(rival.predicted_s / own.predicted_s), (rival.ids, own.ids)))
    quantity = f"Predicted speed-up, {level.quantity}"
    return judge(replace(level, quantity=quantity, formula=Formula.PREDICTED_STEP), cells)


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
