"""Tables of methods and targets for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from analysis.targets.reached import judged
from analysis.targets.rows import Spread, TargetRow, TargetStudy
from analysis.terminal import ColumnOf, Listing, columns_of
from analysis.wording import NOT_KNOWN, duration, number, size

NOT_REACHED = "not reached"


def spread(value: Spread | None) -> str:
    """`mean ± standard deviation`."""
    if value is None:
        return NOT_KNOWN
    return number(value.mean, 4) + (f" ± {number(value.deviation, 2)}" if value.deviation is not None else "")


def price(value: float | None, worded: Callable[[float | None], str]) -> str:
    """A price, or that it was not reached."""
    return NOT_REACHED if value is not None and math.isinf(value) else worded(value)


COLUMNS: tuple[ColumnOf[TargetRow], ...] = (
    ColumnOf("accuracy at\nthe end", 1, lambda row: spread(row.final_accuracy)),
    ColumnOf("loss at\nthe end", 3, lambda row: spread(row.final_loss)),
    ColumnOf("reached", 2, lambda row: f"{row.num_reached} of {len(row.prices)}"),
    ColumnOf("steps to\ntarget", 0, lambda row: price(row.steps, lambda steps: number(steps, 4))),
    ColumnOf("bytes to\ntarget", 1, lambda row: price(row.num_bytes, size)),
    ColumnOf("time to\ntarget", 1, lambda row: price(row.time_s, duration)),
)


def target_tables(studies: Sequence[TargetStudy]) -> Iterator[Listing]:
    """One table a setting."""
    for study in studies:
        short = (f"{row.name}: {judged(study, row)}" for row in study.rows if not row.reaches)
        yield Listing(
            title=f"{study.suite}: {study.title} ({study.evidence})",
            heading="method",
            labels=tuple(row.name for row in study.rows),
            ran=tuple(row.strategy for row in study.rows),
            columns=columns_of(COLUMNS, study.rows),
            notes=(f"Target: {study.rule}. Time: {study.clock}. Bytes: of one rank.", *short),
        )
