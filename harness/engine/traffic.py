"""Counts what is sent: the one place where bytes of our own engine come from.

Gloo carries what lies on the CPU, and each of its sends, whatever its size, takes two notices and a header of 48 bytes
(measured on emulated interfaces, tests/harness/test_wire_bytes.py). They are counted by themselves, as framing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from baselines.api import AllGather, AllReduce, AllToAll, Broadcast, Gather, Primitive, Serve, Transfer

FRAMING = "framing"  # its tag
FRAMING_BYTES = 3 * 48  # of one send of gloo's


@dataclass(slots=True)
class Traffic:
    """What a rank has sent so far: messages, rounds in which ranks agreed on their order, and bytes by tag: payload by
    what it is for, and gloo's framing of all of it."""

    num_messages: int = 0
    num_control_rounds: int = 0
    wire_bytes: dict[str, float] = field(default_factory=dict)

    def count(self, tag: str, nbytes: float) -> None:
        if nbytes:
            self.wire_bytes[tag] = self.wire_bytes.get(tag, 0.0) + nbytes

    def send(self, tag: str, primitive: Primitive, world: int) -> None:
        """Count what `primitive` sends."""
        self.count(tag, bytes_sent(primitive, world))
        self.count(FRAMING, framing_sent(primitive, world))


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


def framing_sent(primitive: Primitive, world: int) -> float:
    """Bytes that gloo adds, a mean over ranks as in `bytes_sent`; 0 on a GPU, where NCCL's protocol is not known.

    Its all-reduce and all-gather are rings that cut what they carry in two for each neighbour.
    """
    match primitive:
        case Transfer(send=None) | Serve():
            return 0.0
        case Transfer(send=Tensor() as tensor):
            num_sends: float = 1
        case AllToAll(parts=(tensor, *_)):
            num_sends = world - 1
        case AllReduce(tensor):
            num_sends = 4 * (world - 1)
        case AllGather(tensor):
            num_sends = 2 * (world - 1)
        case Gather(tensor) | Broadcast(tensor):
            num_sends = (world - 1) / world
    return 0.0 if tensor.is_cuda else num_sends * FRAMING_BYTES


def bytes_received(primitive: Transfer | AllToAll) -> int:
    """Payload bytes that reach the rank which asks for `primitive`."""
    if isinstance(primitive, AllToAll):
        return sum(primitive.sizes) * primitive.parts[0].element_size()
    return 0 if primitive.into is None else _nbytes((primitive.into,))


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
