"""Counts what is sent: the one place where bytes of our own engine come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from baselines.api import AllGather, AllReduce, Broadcast, Gather, Primitive, Shift


@dataclass(slots=True)
class Traffic:
    """What a rank has sent so far: messages, and payload bytes by tag."""

    num_messages: int = 0
    wire_bytes: dict[str, float] = field(default_factory=dict)

    def count(self, tag: str, nbytes: float) -> None:
        self.wire_bytes[tag] = self.wire_bytes.get(tag, 0.0) + nbytes


def bytes_sent(primitive: Primitive, world: int) -> float:
    """Payload bytes a rank sends for `primitive`, over the ranks' mean.

    All-reduce: 2(P−1)/P · n (ring); all-gather: (P−1) · n; shift: n; gather and broadcast:
    (P−1)/P · n, since all ranks together send P−1 copies.
    """
    tensor = primitive.tensor
    nbytes = tensor.numel() * tensor.element_size()
    share = {
        AllReduce: 2 * (world - 1) / world,
        AllGather: world - 1,
        Shift: 1,
        Gather: (world - 1) / world,
        Broadcast: (world - 1) / world,
    }
    return nbytes * share[type(primitive)] if world > 1 else 0.0
