"""First in, first out: messages go in the order in which they were made. The null of ordering.

With `depth` 2, one message's last hop overlaps the next one's first, as with gloo's two worker
threads under DDP. Messages in flight share the link, so a small one passes a large one; with `one_by_one` they travel
one behind the other, and the link does not wait between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Message, Slot, check_depth


@dataclass(frozen=True, slots=True)
class Fifo:
    card: ClassVar[Card] = Card(
        name="fifo",
        slot=Slot.ORDERING,
        summary="messages in the order in which they were made",
        paper="textbook queue",
    )
    rank_invariant: ClassVar[bool] = True
    depth: int = 2
    one_by_one: bool = False

    def __post_init__(self) -> None:
        check_depth(self.depth)

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        """The message that was made first."""
        return pending[0] if pending else None
