"""Tables of methods and targets for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group

from analysis import terminal
from analysis.targets.reached import judged
from analysis.targets.rows import Spread, TargetRow, TargetStudy
from analysis.terminal import Column
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


# Heading, rank (0 stays longest on a narrow terminal), text of one row.
COLUMNS: tuple[tuple[str, int, Callable[[TargetRow], str]], ...] = (
    ("accuracy at\nthe end", 1, lambda row: spread(row.final_accuracy)),
    ("loss at\nthe end", 3, lambda row: spread(row.final_loss)),
    ("reached", 2, lambda row: f"{row.num_reached} of {len(row.prices)}"),
    ("steps to\ntarget", 0, lambda row: price(row.steps, lambda steps: number(steps, 4))),
    ("bytes to\ntarget", 1, lambda row: price(row.num_bytes, size)),
    ("time to\ntarget", 1, lambda row: price(row.time_s, duration)),
)


def target_tables(studies: Sequence[TargetStudy], width: int) -> Iterator[Group]:
    """One table a setting."""
    for study in studies:
        columns = [Column(heading, tuple(map(cell, study.rows)), rank) for heading, rank, cell in COLUMNS]
        table = terminal.table("method", [row.name for row in study.rows], columns, width)
        short = [f"{row.name}: {judged(study, row)}" for row in study.rows if not row.reaches]
        notes = [f"Target: {study.rule}. Time: {study.clock}. Bytes: of one rank.", *short]
        yield terminal.titled(f"{study.suite}: {study.title} ({study.evidence})", table, width, notes)
