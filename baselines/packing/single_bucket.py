"""One message for the whole model (one a number format): communication starts when backward has ended.

The null of overlap: synchronous SGD without wait-free backpropagation, step time c + m. It is
the denominator of the crossover theory's simplest case, and a bound for start-up costs, since
it pays α once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Packed, Segment, Slot


@dataclass(frozen=True, slots=True)
class SingleBucket:
    card: ClassVar[Card] = Card(
        name="single-bucket",
        slot=Slot.PACKING,
        summary="the whole model in one message after backward: no overlap",
        paper="textbook synchronous SGD",
    )
    rank_invariant: ClassVar[bool] = True
    slices: ClassVar[bool] = False

    def pack(self, ready: Sequence[Segment]) -> Packed:
        """One group per number format."""
        formats = dict.fromkeys(segment.dtype for segment in ready)
        return Packed(tuple(tuple(s for s in ready if s.dtype == own) for own in formats))
