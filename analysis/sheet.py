"""The sheet of claims: every hypothesis of every study with its verdict, figures, rule and records, as Markdown.

One table per claim in one regular form, so that a script can read the page and work out every number again. An operand
of a figure is written as the ids of its records, `prefix.r{00,01}` where they differ in their repeat alone.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from analysis.claims import EVERY_CELL, ClaimRow, Formula, JudgedCell, Outcome
from analysis.stats import FEWEST_FOR_LEVEL, PREDICTION_ERROR
from analysis.study import Evidence, Study
from analysis.wording import NOT_KNOWN, percent

NOT_RECOMPUTED = "not recomputed"  # the script counts what says so
REPEAT = re.compile(r"(?P<stem>.*)\.r(?P<repeat>\d+)")
INTRODUCTION = f"""# Claims

Every hypothesis of every suite, and what the records in `results/reference` say of it. `crossover-bench claims --out
docs/claims.md` writes this page; `scripts/recompute_claims.py` works out every number on it again from the raw JSON,
without this code. A
claim whose figures it cannot work out says *{NOT_RECOMPUTED}*.

A claim is **met** where in every cell the whole 95 % interval over repeats lies beyond the level, **missed** where in
one it lies wholly on the other side at a level corrected for the number of cells, else **undecided**. A rule for
*some cell* asks for one: met where it surely holds in one, missed where it surely fails in all. Fewer than
{FEWEST_FOR_LEVEL} repeats are a *range* and decide nothing. **Out of reach** needs what is not to be had here; **not
measured** has no record. Counted bytes and what a simulated network does are *exact*: they are no sample. A
*predicted* ratio is taken to be within ±{percent(PREDICTION_ERROR)}, as 95 % of predicted steps are that were measured
too. See [Reading the report](guide/reading-the-report.md).
"""
HEAD = ("| cell | median | low | high | n | kind | says | records |", "|---|---:|---:|---:|---:|---|---|---|")


def claims_of(studies: Iterable[Study], evidence: Evidence) -> dict[str, tuple[ClaimRow, ...]]:
    """Every claim by suite; one that several suites make stands with the first."""
    seen: set[str] = set()
    found: dict[str, tuple[ClaimRow, ...]] = {}
    for study in studies:
        rows = [row for row in study.claims(evidence) if row.claim not in seen]
        seen.update(row.claim for row in rows)
        found[study.suite] = tuple(rows)
    return {suite: rows for suite, rows in found.items() if rows}


def sheet(by_suite: Mapping[str, Sequence[ClaimRow]], num_records: int) -> str:
    """The whole page."""
    parts = [INTRODUCTION, *_overview(by_suite, num_records), ""]
    for suite, rows in by_suite.items():
        parts += [f"## {suite}", ""]
        for row in rows:
            parts += [*_claim(row), ""]
    return "\n".join(parts)


def core(by_suite: Mapping[str, Sequence[ClaimRow]]) -> str:
    """A line per suite, for a page that quotes the sheet: how many claims have which outcome."""
    return "\n".join(_overview(by_suite, None))


def _overview(by_suite: Mapping[str, Sequence[ClaimRow]], num_records: int | None) -> Iterator[str]:
    if num_records is not None:
        yield f"From {num_records:,} records:"
        yield ""
    yield f"| suite | claims | {' | '.join(outcome.value for outcome in Outcome)} |"
    yield f"|---|---:|{'---:|' * len(Outcome)}"
    every = [row for rows in by_suite.values() for row in rows]
    for suite, rows in (*by_suite.items(), ("**all**", every)):
        counts = Counter(row.outcome for row in rows)
        yield f"| {suite} | {len(rows)} | {' | '.join(str(counts[outcome]) for outcome in Outcome)} |"


def _claim(row: ClaimRow) -> Iterator[str]:
    yield f"### {row.claim}"
    yield ""
    figure = f" · figure: {row.formula.value}" if row.formula is not Formula.NONE else ""
    if row.cells and not figure:
        figure = f" · {NOT_RECOMPUTED}"
    unit = f" · in {row.unit.strip()}" if row.unit.strip() not in ("", "×") else ""
    yield f"**{row.outcome.value}** · rule: {row.rule or NOT_KNOWN}{figure}{unit}"
    yield ""
    if not row.cells or not row.rule.startswith(EVERY_CELL):
        yield row.sentence
        yield ""
    if not row.cells:
        return
    yield from HEAD
    for cell in row.cells:
        yield _line(cell)


def _line(cell: JudgedCell) -> str:
    value = cell.value
    kinds = (("predicted", value.is_foretold), ("exact", value.exact), ("range", value.is_range), ("interval", True))
    kind = next(name for name, holds in kinds if holds)
    numbers = " | ".join(plain(end) for end in (value.median, value.low, value.high))
    records = "; ".join(operand(ids) for ids in cell.of)
    name = cell.cell.replace("|", "\\|")
    return f"| {name} | {numbers} | {value.n} | {kind} | {cell.outcome.value} | {records} |"


def plain(value: float) -> str:
    """Five significant figures that any program reads; nothing where there is no number."""
    return "" if math.isnan(value) else f"{value:.5g}"


def operand(ids: Sequence[str]) -> str:
    """The records of one operand, those that differ in their repeat alone together."""
    stems: dict[str, list[str]] = {}
    for own in ids:
        found = REPEAT.fullmatch(own)
        stems.setdefault(found["stem"] if found else own, []).extend([found["repeat"]] if found else [])
    return " + ".join(f"`{stem}.r{{{','.join(nums)}}}`" if nums else f"`{stem}`" for stem, nums in stems.items())
