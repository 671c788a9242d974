"""A figure with what belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A figure with the words and the records that belong to it. `topic` is the report's section."""

    name: str
    topic: str
    caption: str
    figure: Figure
    record_ids: tuple[str, ...]
