"""Counts what is sent: the one place where bytes of our own engine come from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from baselines.api import AllGather, AllReduce, AllToAll, Broadcast, Gather, Primitive, Serve, Transfer


@dataclass(slots=True)
class Traffic:
    """What a rank has sent so far: messages, rounds in which ranks agreed on their order, and payload bytes by tag."""

    num_messages: int = 0
    num_control_rounds: int = 0
    wire_bytes: dict[str, float] = field(default_factory=dict)

    def count(self, tag: str, nbytes: float) -> None:
        self.wire_bytes[tag] = self.wire_bytes.get(tag, 0.0) + nbytes


def bytes_sent(primitive: Primitive, world: int) -> float:
    """Payload bytes that the rank which asks for `primitive` sends.

    Transfer and all-to-all: exactly what this rank sends, which may differ over ranks. All-reduce: 2(P−1)/P · n (ring,
    equal on all ranks); all-gather: (P−1) · n. Gather and broadcast: (P−1)/P · n, the mean over ranks, since all of
    them together send P−1 copies. Serve: nothing.
    """
    match primitive:
        case Transfer(send=None) | Serve():
            return 0.0
        case Transfer(send=Tensor() as tensor):
            return float(_nbytes((tensor,)))
        case AllToAll(parts):
            return float(_nbytes(parts))
        case AllReduce(tensor):
            share = 2 * (world - 1) / world
        case AllGather(tensor):
            share = world - 1
        case Gather(tensor) | Broadcast(tensor):
            share = (world - 1) / world
    return _nbytes((tensor,)) * share


def bytes_received(primitive: Transfer | AllToAll) -> int:
    """Payload bytes that reach the rank which asks for `primitive`."""
    if isinstance(primitive, AllToAll):
        return sum(primitive.sizes) * primitive.parts[0].element_size()
    return 0 if primitive.into is None else _nbytes((primitive.into,))


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
