"""Slices: every tensor is cut into messages of at most so many elements, so that an ordering can interrupt a large one.

Paper: Jayarajan et al., Priority-based Parameter Propagation (P3), MLSys 2019, arXiv 1905.03960: the granularity of
synchronisation need not be the tensor. A tensor of n elements becomes ⌈n / s⌉ messages, all of s elements but the
last; a smaller one travels alone. Messages go in ready order, within a tensor from its first element on: alone, under
`fifo`, slices only pay more start-up times α; they are there for orderings by priority.

Default s = 40,000, that of the authors' code in MXNet (`MXNET_KVSTORE_SLICE_THRESHOLD`); the paper says 50,000.
Tuners search from 500,000 up (2 MB; ByteScheduler from 8 MB): a large model in slices of 10,000 is ten thousand
messages a step, and trying that once costs more than all the other trials.

Differs from the paper: slices are spread over parameter servers there, round robin; that is the exchange's part here.
Not verified against the paper's text, nor its value of s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from baselines.api import Card, Knob, Packed, Segment, Slot, size


@dataclass(frozen=True, slots=True)
class Slices:
    card: ClassVar[Card] = Card(
        name="slices",
        slot=Slot.PACKING,
        summary="every tensor cut into messages of at most slice_elements",
        paper="Jayarajan et al., P3, MLSys 2019, arXiv 1905.03960",
    )
    rank_invariant: ClassVar[bool] = True
    slices: ClassVar[bool] = True
    knobs: ClassVar[Mapping[str, Knob]] = {"slice_elements": Knob(500_000, 32_000_000)}
    slice_elements: int = size(40_000, "elements")

    def __post_init__(self) -> None:
        if self.slice_elements < 1:
            raise ValueError(
                f"slice_elements is {self.slice_elements}; use at least 1 (unfused sends each tensor uncut)"
            )

    def pack(self, ready: Sequence[Segment], now_s: float) -> Packed:
        return Packed(tuple((part,) for segment in ready for part in self._cut(segment)))

    def _cut(self, segment: Segment) -> Iterator[Segment]:
        """At least one slice, so that an empty tensor too is sent and counts as landed."""
        for start in range(segment.start, max(segment.stop, segment.start + 1), self.slice_elements):
            yield replace(segment, start=start, stop=min(start + self.slice_elements, segment.stop))
