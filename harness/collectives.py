"""Primitives among virtual ranks in one process: exact, in order of rank, nothing is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from baselines.api import AllGather, AllReduce, Broadcast, Gather, Payload, Primitive, Shift
from harness.transport import Done


class DisagreementError(RuntimeError):
    """Ranks that must do the same do not: a defect of a plug-in or of the order agreement."""


def perform(primitives: Sequence[Primitive]) -> list[Payload]:
    """Carry out one primitive, asked for by every rank; the answers in order of rank.

    Sums are taken in order of rank, and every answer is the receiver's own memory.
    Raises: DisagreementError if kinds, sizes or types differ over ranks.
    """
    wanted = {(type(p).__name__, p.tensor.numel(), p.tensor.dtype) for p in primitives}
    if len(wanted) != 1:
        raise DisagreementError(f"ranks ask for different primitives: {sorted(map(str, wanted))}")
    tensors = [primitive.tensor for primitive in primitives]
    match primitives[0]:
        case AllReduce():
            return _overwrite(tensors, _sum(tensors))
        case Broadcast():
            return _overwrite(tensors, tensors[0].clone())
        case AllGather():
            return [tuple(tensor.clone() for tensor in tensors) for _ in tensors]
        case Gather():
            return [tuple(tensor.clone() for tensor in tensors), *(() for _ in tensors[1:])]
        case Shift():
            return _shift(primitives)


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total.add_(tensor)
    return total


def _overwrite(tensors: Sequence[Tensor], value: Tensor) -> list[Payload]:
    return [(tensor.copy_(value),) for tensor in tensors]


def _shift(primitives: Sequence[Primitive]) -> list[Payload]:
    sent = [primitive.tensor.clone() for primitive in primitives]
    answers: list[Payload] = []
    for rank, primitive in enumerate(primitives):
        assert isinstance(primitive, Shift)
        answers.append((primitive.into.copy_(sent[rank - 1]),))
    return answers


@dataclass(slots=True)
class Room:
    """Where the transports of virtual ranks meet: a primitive is carried out when all have asked."""

    world: int
    _asked: dict[int, dict[int, tuple[Primitive, Done]]] = field(default_factory=dict)

    def seat(self, rank: int) -> RoomTransport:
        """The transport of one rank."""
        return RoomTransport(rank, self.world, self)

    def ask(self, rank: int, primitive: Primitive, lane: int, done: Done) -> None:
        """One rank asks; the last one to ask has everyone answered before this returns."""
        asked = self._asked.setdefault(lane, {})
        if rank in asked:
            raise DisagreementError(f"rank {rank} asks twice on lane {lane} before the other ranks have asked")
        asked[rank] = (primitive, done)
        if len(asked) == self.world:
            del self._asked[lane]
            ordered = [asked[r] for r in range(self.world)]
            for (_, tell), answer in zip(ordered, perform([p for p, _ in ordered]), strict=True):
                tell(answer)


@dataclass(frozen=True, slots=True)
class RoomTransport:
    """A `Transport` into a room."""

    rank: int
    world: int
    room: Room

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        self.room.ask(self.rank, primitive, lane, done)

    def close(self) -> None:
        """Nothing is held."""
