"""Primitives among virtual ranks in one process: exact, in order of rank, nothing is sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from baselines.api import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Message,
    Payload,
    Primitive,
    Serve,
    Transfer,
)
from harness.engine.core import Start
from harness.engine.transport import Done

Way = tuple[int | None, int | None]


class DisagreementError(RuntimeError):
    """Ranks that must do the same do not: a defect of a plug-in or of the order agreement."""


def perform(primitives: Sequence[Primitive]) -> list[Payload]:
    """Carry out one primitive, asked for by every rank; the answers in order of rank.

    Sums are taken in order of rank, and every answer is the receiver's own memory.
    Raises: DisagreementError if kinds, sizes or types differ over ranks, or what one sends nobody receives.
    """
    if len(kinds := {type(p).__name__ for p in primitives}) != 1:
        raise DisagreementError(f"ranks ask for different primitives: {sorted(kinds)}")
    match primitives[0]:
        case Transfer():
            return _transfer([p for p in primitives if isinstance(p, Transfer)])
        case AllToAll():
            return _all_to_all([p for p in primitives if isinstance(p, AllToAll)])
        case Serve():
            raise DisagreementError("a server steps by itself; let the engine do it")
    tensors = _equal_in_size(primitives)
    match primitives[0]:
        case AllReduce():
            # Into each rank's own tensor, as a library does: what a plug-in keeps of it must not be another rank's
            # memory.
            return _overwrite(tensors, _sum(tensors))
        case Broadcast():
            return _overwrite(tensors, tensors[0].clone())
        case AllGather():
            return [tuple(tensor.clone() for tensor in tensors) for _ in tensors]
        case Gather():
            return [tuple(tensor.clone() for tensor in tensors), *(() for _ in tensors[1:])]


def _equal_in_size(primitives: Sequence[Primitive]) -> list[Tensor]:
    """The one tensor of each rank's primitive."""
    tensors = [p.tensor for p in primitives if isinstance(p, AllReduce | AllGather | Gather | Broadcast)]
    wanted = {(type(primitives[0]).__name__, tensor.numel(), tensor.dtype) for tensor in tensors}
    if len(wanted) != 1:
        raise DisagreementError(f"ranks ask for different primitives: {sorted(map(str, wanted))}")
    return tensors


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total.add_(tensor)
    return total


def _overwrite(tensors: Sequence[Tensor], value: Tensor) -> list[Payload]:
    return [(tensor.copy_(value),) for tensor in tensors]


def _transfer(transfers: Sequence[Transfer]) -> list[Payload]:
    # Cloned first: a ring sends and receives in the same buffer, and order must not matter.
    sends: dict[Way, Tensor] = {(rank, t.to): t.send.clone() for rank, t in enumerate(transfers) if t.send is not None}
    awaited: dict[Way, Tensor] = {(t.source, rank): t.into for rank, t in enumerate(transfers) if t.into is not None}
    if sends.keys() != awaited.keys():
        raise DisagreementError(f"sent (from, to) {sorted(map(str, sends))}, received {sorted(map(str, awaited))}")
    for way, into in awaited.items():
        if (into.numel(), into.dtype) != (sends[way].numel(), sends[way].dtype):
            raise DisagreementError(
                f"rank {way[0]} sends {sends[way].numel()} of {sends[way].dtype} and rank {way[1]} receives "
                f"{into.numel()} of {into.dtype}"
            )
        into.copy_(sends[way])
    return [() if t.into is None else (t.into,) for t in transfers]


def _all_to_all(asked: Sequence[AllToAll]) -> list[Payload]:
    world = len(asked)
    for rank, own in enumerate(asked):
        if len(own.parts) != world or len(own.sizes) != world or own.parts[rank].numel() or own.sizes[rank]:
            raise DisagreementError(
                f"rank {rank} needs a part and a size for each of {world} ranks and empty ones for itself, not "
                f"{len(own.parts)} parts and sizes {own.sizes}"
            )
        for source, other in enumerate(asked):
            sent = other.parts[rank]
            if sent.numel() != own.sizes[source] or sent.dtype != own.parts[rank].dtype:
                raise DisagreementError(
                    f"rank {source} sends {sent.numel()} of {sent.dtype} to rank {rank}, which receives "
                    f"{own.sizes[source]} of {own.parts[rank].dtype}"
                )
    return [tuple(other.parts[rank].clone() for other in asked) for rank in range(world)]


@dataclass(slots=True)
class Room:
    """Where the transports of virtual ranks meet: a primitive is carried out when all have asked."""

    world: int
    _asked: dict[int, dict[int, tuple[Primitive, Done]]] = field(default_factory=dict)

    def seat(self, rank: int) -> RoomTransport:
        """The transport of one rank."""
        return RoomTransport(rank, self.world, self)

    @property
    def has_waiting(self) -> bool:
        """Whether some ranks wait for others to ask."""
        return bool(self._asked)

    def is_asked_on(self, lane: int) -> bool:
        """Whether some ranks wait for others on `lane`."""
        return bool(self._asked.get(lane))

    def ask(self, rank: int, primitive: Primitive, lane: int, done: Done) -> None:
        """One rank asks; the last one to ask has everyone answered before this returns."""
        asked = self._asked.setdefault(lane, {})
        if rank in asked:
            raise DisagreementError(f"rank {rank} asks twice on lane {lane} before the other ranks have asked")
        asked[rank] = (primitive, done)
        if len(asked) == self.world:
            # Before anybody is told: an answer may lead its rank to ask on this lane again.
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
        """Ask in the room; `done` is called inside the call of the last rank to ask."""
        self.room.ask(self.rank, primitive, lane, done)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(slots=True)
class Meetings:
    """Where the cores of virtual ranks meet: answers wait here in order, so that no rank goes on inside another one's
    call."""

    world: int
    _room: Room = field(init=False)
    _asked: dict[int, tuple[Message | None, str]] = field(default_factory=dict)  # by lane: what the first one asked for
    _answers: deque[tuple[int, int, Payload]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._room = Room(self.world)

    @property
    def has_waiting(self) -> bool:
        """Whether some ranks wait for others to ask."""
        return self._room.has_waiting

    def ask(self, rank: int, start: Start, message: Message | None) -> None:
        """`rank` starts a primitive for `message`; the last one to ask has the answers put in order.

        Raises: DisagreementError if ranks that meet are at different messages or tags.
        """
        own = (message, start.tag)
        if not self._room.is_asked_on(start.lane):
            self._asked[start.lane] = own
        # Ranks at different messages would sum unlike tensors of like size, and no number would look wrong.
        if own != self._asked[start.lane]:
            raise DisagreementError(f"ranks send different messages: {own} and {self._asked[start.lane]}")
        self._room.ask(rank, start.real, start.lane, partial(self._answer, rank, start.lane))

    def next_answer(self) -> tuple[int, int, Payload] | None:
        """Rank, lane and answer of the next primitive that is complete; None if none is."""
        return self._answers.popleft() if self._answers else None

    def _answer(self, rank: int, lane: int, answer: Payload | Exception) -> None:
        assert not isinstance(answer, Exception), "a room only answers, or raises"
        self._answers.append((rank, lane, answer))
