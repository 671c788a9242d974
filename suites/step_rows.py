"""What studies of step times share: which rows are ours with nothing reordered or compressed, and by which plug-ins."""

from __future__ import annotations

from analysis.cells import OURS
from analysis.steps.rows import Setting, StepRow

ORDERINGS = ("p3", "tictac", "bytescheduler")
SPEED = "Speed-up, repeat by repeat"


def parts(row: StepRow) -> frozenset[str]:
    """Names of the plug-ins that its method names."""
    return row.strategy.names


def is_fifo(row: StepRow) -> bool:
    """Whether it is ours, with nothing reordered and nothing compressed."""
    return row.system == OURS and not parts(row) & {*ORDERINGS, "half", "topk", "bayesian"}


def anywhere(_: Setting) -> bool:
    """In every place."""
    return True
