"""P3: a preemptive queue by priority. Of what is ready, what the next forward needs first goes next.

Paper: Jayarajan et al., Priority-based Parameter Propagation for Distributed DNN Training, SysML 2019, arXiv
1905.03960. A layer's priority falls with its distance from the input, messages of one layer go first in, first out:

    next = argmin over pending of (−priority, index)

A message on its way is not recalled, so what is urgent waits for at most the messages in flight and those already
agreed: use it with small messages, and with parameters that are updated as the forward needs them:
`slices(slice_elements=40000)+p3+at-pre-hook`. While one message travels, the next is handed over: `depth` 2.
With `one_by_one=False` messages in flight share the link: what is urgent then begins to travel as soon as it is in
flight, and passes what is larger, which pays where messages are few and large.

The authors' code compares priorities with `<=`, which is no strict weak order and leaves the order of equals open;
here equals keep their order.

Differs from the paper: there, each worker sends to parameter servers by its own clock; here the ranks agree on one
order, so that it also goes with all-reduce, and the agreement decides some messages ahead
(harness/engine/negotiate.py). Not verified against the paper's text, but against the
authors' public code (a priority queue in ps-lite's sender thread).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Message, Slot, check_depth


@dataclass(frozen=True, slots=True)
class P3:
    card: ClassVar[Card] = Card(
        name="p3",
        slot=Slot.ORDERING,
        summary="what the next forward needs first overtakes what is pending",
        paper="Jayarajan et al., P3, SysML 2019, arXiv 1905.03960",
    )
    rank_invariant: ClassVar[bool] = False
    depth: int = 2
    one_by_one: bool = True

    def __post_init__(self) -> None:
        check_depth(self.depth)

    def key(self, message: Message) -> tuple[int, ...]:
        """Nearest to the input first; equals in the order in which they were made."""
        return -message.priority, message.index

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        """The most urgent message, whatever is in flight."""
        return min(pending, key=self.key, default=None)
