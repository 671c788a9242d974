"""Unfused wait-free backpropagation (WFBP): one message a parameter, as soon as it is ready.

Paper: Zhang et al., Poseidon, USENIX ATC 2017, section 3.1. The null of the packing slot: every
other packing has to beat it. Overlap with backward is complete; each message pays the start-up
time α.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Packed, Segment, Slot


@dataclass(frozen=True, slots=True)
class Unfused:
    card: ClassVar[Card] = Card(
        name="unfused",
        slot=Slot.PACKING,
        summary="one message a parameter, sent while backward goes on",
        paper="Zhang et al., Poseidon, USENIX ATC 2017",
    )
    rank_invariant: ClassVar[bool] = True
    slices: ClassVar[bool] = False

    def pack(self, ready: Sequence[Segment]) -> Packed:
        """One group per parameter."""
        return Packed(tuple((segment,) for segment in ready))
