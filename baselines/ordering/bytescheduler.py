"""ByteScheduler: a queue by priority behind a window of credit.

Paper: Peng et al., A Generic Communication Scheduler for Distributed DNN Training Acceleration, SOSP 2019. Tensors are
cut into partitions of whole rows (the packing: `slices(slice_elements=1000000, cut='rows')+bytescheduler`). Of what is
ready, the layer nearest to the input goes next, partitions of one tensor in order, as long as there is credit:

    go  ⇔  Σ bytes of messages that have gone and are not complete < credit_bytes

so at most credit + one partition is outstanding. Little credit lets urgent messages overtake; much credit keeps the
link filled. With infinite credit whatever is ready goes at once, which without partitions is first in, first out.

Defaults: the authors' code has 4,000,000 parameters of credit (`BYTESCHEDULER_CREDIT`, 16 MB in float32) and partitions
of 1,000,000, and tunes the credit (both with `BYTESCHEDULER_PARTITION_TUNING`); here `knobs` names the credit and the
packing's own the partition. The credit is searched in 4 to 64 million parameters (16 to 256 MB), as there for
all-reduce; for parameter servers that code searches 1 to 16 million. In the suites' scaled models divide both by the
size scale. `depth` bounds what is handed over at the same time, which there is up to the communication stack; of it the
first message has the link, or with `one_by_one=False` all share it.

Differs from the paper: "gone" means decided for all ranks, so the credit is also how far ahead ranks agree on the
order. Once every gradient is ready the rest is decided at once, since its order cannot change, and the credit then
bounds what is in flight. Not verified against the paper's text, but against the authors' public code (ByteCore).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Knob, Message, Slot, check_depth, size


@dataclass(frozen=True, slots=True)
class ByteScheduler:
    card: ClassVar[Card] = Card(
        name="bytescheduler",
        slot=Slot.ORDERING,
        summary="what the next forward needs first, while there is credit",
        paper="Peng et al., ByteScheduler, SOSP 2019",
    )
    rank_invariant: ClassVar[bool] = False
    knobs: ClassVar[Mapping[str, Knob]] = {"credit_bytes": Knob(16_000_000, 256_000_000)}
    credit_bytes: int = size(16_000_000, "bytes")
    depth: int = 4
    one_by_one: bool = True

    def __post_init__(self) -> None:
        check_depth(self.depth)
        if self.credit_bytes < 1:
            raise ValueError(f"credit_bytes is {self.credit_bytes}; use at least 1")

    def key(self, message: Message) -> tuple[int, ...]:
        """Nearest to the input first; partitions of one tensor in order."""
        return -message.priority, message.index

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        """The most urgent message while there is credit; with nothing in flight it goes whatever its size."""
        if in_flight and sum(message.nbytes for message in in_flight) >= self.credit_bytes:
            return None
        return min(pending, key=self.key, default=None)
