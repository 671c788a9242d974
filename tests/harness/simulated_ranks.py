"""Ranks that negotiate and send, without threads: at random times, or on a virtual clock."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence

from baselines.api import Message, Payload, Primitive, Segment
from baselines.strategy import Strategy
from harness.engine.negotiate import Negotiation
from harness.engine.traffic import Traffic
from harness.engine.transport import CONTROL, Done
from harness.lockstep.collectives import Room


def segments(num: int) -> tuple[Segment, ...]:
    return tuple(Segment(f"p{index}", (index + 1,), 0, index + 1, index) for index in range(num))


class Rank:
    """One rank's side, with `depth` lanes whose messages complete when told."""

    def __init__(
        self,
        strategy: Strategy,
        layout: Sequence[Segment],
        room: Room,
        rank: int,
        *,
        before: Negotiation | None = None,
    ) -> None:
        self.traffic = Traffic()
        self.sent: list[Message] = []
        self.flying: list[Message] = []
        self.held: Message | None = None
        self.most_bytes_in_flight = 0
        self.now_s = 0.0
        self._depth = strategy.ordering.depth
        self._seat = room.seat(rank)
        self.side = Negotiation(strategy, layout, rank, room.world, clock=lambda: self.now_s, before=before)

    def _receive(self, answer: Payload | Exception) -> None:
        assert not isinstance(answer, Exception)
        self._ask(self.side.answered(answer))

    def _ask(self, primitive: Primitive | None) -> None:
        if primitive is not None:
            self.traffic.send("control", primitive, self._seat.world)
            self._seat.start(primitive, CONTROL, self._receive)

    @property
    def num_sent(self) -> int:
        return sum(message.numel for message in self.sent)

    def land(self, place: int = 0) -> None:
        self.flying.pop(place)
        self.side.landed()

    def act(self, now_s: float) -> float | None:
        """What the engine does after every event."""
        self.now_s = now_s
        while len(self.flying) < self._depth and (message := self.held or self.side.next()):
            self.held = message
            if not self.side.may_go(message, tuple(self.flying), now_s):
                break
            self.held = None
            self.flying.append(message)
            self.sent.append(message)
            self.most_bytes_in_flight = max(self.most_bytes_in_flight, sum(m.nbytes for m in self.flying))
        taken = self.flying if self.held is None else [*self.flying, self.held]
        asked = self.side.cycle(tuple(taken), now_s)
        if isinstance(asked, float):
            return asked
        self.traffic.num_control_rounds += asked is not None
        self._ask(asked)
        return None


def negotiate(strategy: Strategy, layout: Sequence[Segment], world: int, dice: random.Random) -> list[Rank]:
    """All gradients and completions come at random times; runs until nothing is left to do."""
    room = Room(world)
    ranks = [Rank(strategy, layout, room, rank) for rank in range(world)]
    events = [(rank, index) for rank in ranks for index in range(len(layout))]
    dice.shuffle(events)
    now_s = 0.0
    num_elements = sum(segment.numel for segment in layout)
    while events or any(rank.flying or rank.num_sent < num_elements for rank in ranks):
        now_s += dice.random() * 1e-3
        flying = [rank for rank in ranks if rank.flying]
        if events and (not flying or dice.random() < 0.7):
            rank, index = events.pop()
            rank.side.ready(index)
        elif flying:
            dice.choice(flying).land()
        for rank in dice.sample(ranks, world):
            rank.act(now_s)
    return ranks


class TimedStep:
    """One step on a virtual clock: a link carries one message after the other, and a control round takes a hop per
    primitive.

    `ready_s[rank][index]` is when each gradient is ready; a message takes `message_s(message)` from when the link is
    free and every rank has started it. `sent_s` and `landed_s` are times by message index.
    """

    def __init__(
        self,
        strategy: Strategy,
        layout: Sequence[Segment],
        ready_s: Sequence[Sequence[float]],
        *,
        hop_s: float,
        message_s: Callable[[Message], float],
        before: TimedStep | None = None,
    ) -> None:
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ties = itertools.count()
        self.now_s, self._link_free_s = 0.0, 0.0
        self._hop_s, self._message_s = hop_s, message_s
        self.sent_s: dict[int, float] = {}
        self.landed_s: dict[int, float] = {}
        room = _SlowRoom(len(ready_s), self)
        sides = [None] * len(ready_s) if before is None else [rank.side for rank in before.ranks]
        self.ranks = [Rank(strategy, layout, room, rank, before=sides[rank]) for rank in range(len(ready_s))]
        self._started: Counter[int] = Counter()
        for rank, times_s in zip(self.ranks, ready_s, strict=True):
            for index, time_s in enumerate(times_s):
                self.after(time_s, lambda rank=rank, index=index: rank.side.ready(index))  # type: ignore[misc]

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._ties), act))

    def run(self) -> TimedStep:
        while self._events:
            self.now_s, _, act = heapq.heappop(self._events)
            for rank in self.ranks:
                rank.now_s = self.now_s
            act()
            for rank in self.ranks:
                self._act(rank)
        return self

    def _act(self, rank: Rank) -> None:
        num_sent = len(rank.sent)
        pause_s = rank.act(self.now_s)
        for message in rank.sent[num_sent:]:
            self._started[message.index] += 1
            if self._started[message.index] == len(self.ranks):
                self._carry(message)
        if pause_s is not None:
            self.after(pause_s + 1e-9, lambda: None)

    def _carry(self, message: Message) -> None:
        self.sent_s[message.index] = max(self.now_s, self._link_free_s)
        self._link_free_s = self.sent_s[message.index] + self._message_s(message)
        self.after(self._link_free_s - self.now_s, lambda: self._land(message))

    def _land(self, message: Message) -> None:
        self.landed_s[message.index] = self.now_s
        for rank in self.ranks:
            rank.land(rank.flying.index(message))

    def ask(self, room: _SlowRoom, rank: int, primitive: Primitive, lane: int, done: Done) -> None:
        """Half a round after every rank has asked, all are answered."""
        self.after(self._hop_s, lambda: Room.ask(room, rank, primitive, lane, done))


class _SlowRoom(Room):
    def __init__(self, world: int, step: TimedStep) -> None:
        super().__init__(world)
        self._step = step

    def ask(self, rank: int, primitive: Primitive, lane: int, done: Done) -> None:
        self._step.ask(self, rank, primitive, lane, done)
