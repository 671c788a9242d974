"""What a row of the table of methods is, and rows for compressors that the table does not have yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from baselines.api import Slot
from baselines.catalogue import CatalogueError, plugins
from baselines.strategy import parse_strategy
from baselines.text import TextError
from harness.precision import Precision
from results.facts import Role

FEEDBACK = "error feedback"
WITHOUT_ROW = {  # of this tree; written with --strategy, since the reference records of these suites lack them
    "uncompressed": "the null of its slot, which `dense` runs",
    "signsgd": "needs a learning rate some hundred times smaller, which was not searched",
    "signum": "needs a learning rate some hundred times smaller, which was not searched",
    "scaled-sign": "has no reference records in these suites",
    "natural": "has no reference records in these suites",
    "terngrad": "has no reference records in these suites",
}


@dataclass(frozen=True, slots=True)
class TrainingMethod:
    """`text` of a strategy in which `{w}` stands for the warm-up's steps.

    `optimizer` replaces the task's (`plain`: the task's without momentum, for methods that bring their own). `source`
    is where the settings are from.
    """

    name: str
    text: str
    source: str
    optimizer: str = ""
    precision: Precision = Precision.FLOAT32
    is_chosen: bool = False
    role: Role = Role.METHOD


def added_methods(table: Iterable[TrainingMethod]) -> tuple[TrainingMethod, ...]:
    """Compressors of the catalogue, in and outside the tree, that no row of `table` names: each with its default
    settings in DDP's buckets, and again with error feedback where that may go around it."""
    named = {part.partition("(")[0] for method in table for part in method.text.split("+")} | set(WITHOUT_ROW)
    return tuple(row for name in _compressors() if name not in named for row in _rows(name))


def _compressors() -> Iterator[str]:
    kinds = plugins().items()
    return (name for name, kind in kinds if kind.card.slot is Slot.COMPRESSION and not kind.card.wraps)


def _rows(name: str) -> Iterator[TrainingMethod]:
    text = f"fixed-buckets+{name}"
    yield TrainingMethod(name, text, "default settings")
    try:
        parse_strategy(f"{text}+error-feedback")
    except (TextError, CatalogueError):
        return
    yield TrainingMethod(f"{name}, {FEEDBACK}", f"{text}+error-feedback", "default settings")
