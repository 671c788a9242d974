"""What studies of step times share: which rows are ours with nothing reordered or compressed, and by which plug-ins."""

from __future__ import annotations

from analysis.cells import OURS
from analysis.steps.rows import Setting, StepRow
from suites.scaling import MIB

ORDERINGS = ("p3", "tictac", "bytescheduler")
SPEED = "Speed-up, repeat by repeat"
# Parameters that say how large a message may be, and their unit in bytes. torch's MB are MiB.
SIZES = {"bucket_bytes": 1, "bucket_mb": MIB, "threshold_bytes": 1, "fusion_threshold_bytes": 1}
ROUNDED = 0.01  # sizes are recorded to three figures


def parts(row: StepRow) -> frozenset[str]:
    """Names of the plug-ins that its method names."""
    return row.strategy.names


def is_fifo(row: StepRow) -> bool:
    """Whether it is ours, with nothing reordered and nothing compressed."""
    return row.system == OURS and not parts(row) & {*ORDERINGS, "half", "topk", "bayesian"}


def anywhere(_: Setting) -> bool:
    """In every place."""
    return True


def message_bytes(row: StepRow) -> float | None:
    """How large its messages may be at most; None where nothing says so."""
    given = [own for plugin in row.strategy.plugins for own in plugin.given if own.name in SIZES]
    return float(given[0].given or 0) * SIZES[given[0].name] or None if given else None


def same_size(row: StepRow, other: StepRow) -> bool:
    """Whether both may send messages of one size, to the three figures that sizes are written with."""
    own, theirs = message_bytes(row), message_bytes(other)
    return own is not None and theirs is not None and abs(own / theirs - 1) < ROUNDED
