"""What studies of step times share: which rows are ours with nothing reordered or compressed, and by which plug-ins."""

from __future__ import annotations

from analysis.cells import OURS
from analysis.naming import Method
from analysis.steps.rows import Setting, StepRow
from suites.scaling import MIB

ORDERINGS = ("p3", "tictac", "bytescheduler")
SPEED = "Speed-up, repeat by repeat"
# Parameters that say how large a message may be, and their unit in bytes. torch's MB are MiB.
SIZES = {"bucket_bytes": 1, "bucket_mb": MIB, "threshold_bytes": 1, "fusion_threshold_bytes": 1}
FIRST_BYTES = "first_bucket_bytes"
DDP, DDP_SIZES = "torch-ddp", (MIB, 25 * MIB)  # of its first bucket and the others where it is given no size
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


def message_sizes(method: Method) -> tuple[float, float] | None:
    """How many bytes a method's first message may have and how many each other one; None where nothing says so.

    torch DDP's first bucket is smaller only where it is given no size (found with torch 2.13).
    """
    if str(method) == DDP:
        return DDP_SIZES
    given = {own.name: own.given for plugin in method.plugins for own in plugin.given}
    size = next((float(given[name] or 0) * unit for name, unit in SIZES.items() if name in given), 0.0)
    return (float(given.get(FIRST_BYTES) or size), size) if size else None


def same_size(row: StepRow, other: StepRow) -> bool:
    """Whether both may send messages of the same sizes, the first one too, to the three figures that sizes are written
    with."""
    own, theirs = message_sizes(row.strategy), message_sizes(other.strategy)
    if own is None or theirs is None:
        return False
    return all(abs(a / b - 1) < ROUNDED for a, b in zip(own, theirs, strict=True))
