"""Counts what is sent: the one place where bytes of our own engine come from.

Gloo carries what lies on the CPU, and each of its sends, whatever its size, takes two notices and a header of 48 bytes
(measured on emulated interfaces, tests/harness/test_wire_bytes.py). They are counted by themselves, as framing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from torch import Tensor

from baselines.api import AllGather, AllReduce, AllToAll, Broadcast, Gather, Primitive, Serve, Transfer
from fabric.collectives import Collective, load_of

FRAMING = "framing"  # its tag
PROBE = "probe"  # of what planners send to learn costs: no part of a step
FRAMING_BYTES = 3 * 48  # of one send of gloo's


@dataclass(frozen=True, slots=True)
class Planned:
    """What stands for a message's primitives where nothing is sent: bytes that a rank would send, and framing."""

    sent_bytes: float = 0.0
    framing_bytes: float = 0.0


@dataclass(slots=True)
class Traffic:
    """What a rank has sent so far: messages, rounds in which ranks agreed on their order, and bytes by tag: payload by
    what it is for, and gloo's framing of all of it. `num_rounds` are those of the table of collectives, of messages and
    of agreements; a planned primitive tells none."""

    num_messages: int = 0
    num_control_rounds: int = 0
    num_rounds: int = 0
    wire_bytes: dict[str, float] = field(default_factory=dict)

    def count(self, tag: str, nbytes: float) -> None:
        """Add `nbytes` under `tag`; a tag that never carried a byte does not appear."""
        if nbytes:
            self.wire_bytes[tag] = self.wire_bytes.get(tag, 0.0) + nbytes

    def send(self, tag: str, primitive: Primitive | Planned, world: int) -> None:
        """Count what `primitive` sends."""
        if isinstance(primitive, Planned):
            self.count(tag, primitive.sent_bytes)
            self.count(FRAMING, primitive.framing_bytes)
            return
        sent = sent_by(primitive, world)
        self.count(tag, sent.payload_bytes)
        self.count(FRAMING, sent.framing_bytes)
        if tag != PROBE:
            self.num_rounds += sent.num_rounds


class Sent(NamedTuple):
    """What a rank sends by a primitive, and how many rounds that is in the table of collectives."""

    payload_bytes: float
    framing_bytes: float
    num_rounds: int


def sent_by(primitive: Primitive, world: int) -> Sent:
    """What the rank that asks for `primitive` sends among `world` ranks.

    Transfer and all-to-all: exactly what this rank sends, which may differ over ranks. The others: the mean over ranks
    of the table of collectives. Serve: nothing. Framing is 0 on a GPU, where NCCL's protocol is not known.
    """
    match primitive:
        case AllReduce(tensor) | AllGather(tensor) | Gather(tensor) | Broadcast(tensor):
            # Ranks of a gather or broadcast send different amounts; records take the mean, which sums to the total.
            return _sent_of(collective_of(primitive), tensor.nbytes, tensor.is_cuda, world)
        case Transfer() | AllToAll():
            parts, load = _parts_sent(primitive), load_of(collective_of(primitive), world)
            num_sends = 1.0 if isinstance(primitive, Transfer) else load.num_sent
            framing_bytes = num_sends * FRAMING_BYTES if parts and not parts[0].is_cuda else 0.0
            return Sent(float(_nbytes(parts)), framing_bytes, load.num_rounds if tensor_bytes(primitive) else 0)
        case Serve():
            return Sent(0.0, 0.0, 0)


# Messages have the same few sizes in every step, and are counted between layers, where a call takes long.
@lru_cache(maxsize=1024)
def _sent_of(collective: Collective, nbytes: int, is_cuda: bool, world: int) -> Sent:
    """Of a collective to which every rank gives a tensor of `nbytes` bytes.

    Gloo's all-reduce and all-gather cut in two what they carry to each neighbour.
    """
    load = load_of(collective, world)
    num_sends = load.num_sent * (2 if collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER) else 1)
    framing_bytes = 0.0 if is_cuda else num_sends * FRAMING_BYTES
    return Sent(nbytes * load.sent_bytes, framing_bytes, load.num_rounds if nbytes else 0)


def bytes_received(primitive: Transfer | AllToAll) -> int:
    """Payload bytes that reach the rank which asks for `primitive`."""
    if isinstance(primitive, AllToAll):
        return sum(primitive.sizes) * primitive.parts[0].element_size()
    return 0 if primitive.into is None else primitive.into.nbytes


def tensor_bytes(primitive: Primitive) -> float:
    """n of the table of collectives: bytes of the rank's tensor; of transfers and all-to-all, where ranks may differ,
    the fuller direction. 0 where the rank sits the round out."""
    match primitive:
        case AllReduce(tensor) | AllGather(tensor) | Gather(tensor) | Broadcast(tensor):
            return float(tensor.nbytes)
        case Transfer() | AllToAll():
            return float(max(_nbytes(_parts_sent(primitive)), bytes_received(primitive)))
        case Serve():
            return 0.0


_COLLECTIVES: Mapping[type[Primitive], Collective] = {
    own: Collective(own.__name__) for own in (AllReduce, AllGather, AllToAll, Gather, Broadcast, Transfer)
}


def collective_of(primitive: Primitive) -> Collective:
    """Which collective a primitive is. Raises: KeyError for a `Serve`, of which nothing travels."""
    return _COLLECTIVES[type(primitive)]


def _parts_sent(primitive: Transfer | AllToAll) -> Sequence[Tensor]:
    """What this rank itself gives away."""
    if isinstance(primitive, AllToAll):
        return primitive.parts
    return () if primitive.send is None else (primitive.send,)


def _nbytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
