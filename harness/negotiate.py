"""Negotiation: which messages go next, agreed over ranks that see gradients at different times.

A cycle: every rank sends the set of its ready gradients to rank 0 (one byte a parameter); rank 0
asks the policies about what is ready everywhere and broadcasts a window of decisions. A rank
takes part while parameters are undecided, a lane is free and the cycle time is over. Both parts
are primitives on the control lane and count as bytes under the tag `control`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import torch
from torch import Tensor

from baselines.api import Broadcast, Gather, Group, Message, Payload, Primitive, Segment
from baselines.strategy import Strategy
from harness.dispatch import Coordinator
from harness.traffic import Traffic, bytes_sent
from harness.transport import CONTROL, Transport

Post = Callable[[int], Callable[[Payload | Exception], None]]
NUMBERS_A_SEGMENT = 3


class Negotiation:
    """One step's negotiation on one rank. `traffic` counts, `post(lane)` receives answers."""

    def __init__(
        self, strategy: Strategy, segments: Sequence[Segment], transport: Transport, traffic: Traffic, post: Post
    ) -> None:
        self._strategy, self._segments, self._transport = strategy, segments, transport
        self._traffic, self._post = traffic, post
        self._coordinator = Coordinator(strategy.packing, strategy.ordering, segments) if transport.rank == 0 else None
        self._ready = torch.zeros(len(segments), dtype=torch.uint8)
        self._undecided = {segment.name: segment.numel for segment in segments}
        self._decided: list[Message] = []
        self._num_decided = 0
        self._cycle: Generator[Primitive, Payload, Tensor] | None = None
        self._next_cycle_s = 0.0
        self._in_flight: Sequence[Message] = ()

    def ready(self, index: int) -> None:
        """The gradient of parameter `index` is ready on this rank."""
        self._ready[index] = 1

    @property
    def has_next(self) -> bool:
        """Whether a decided message waits."""
        return bool(self._decided)

    def next(self) -> Message | None:
        """The next decided message, in the agreed order."""
        return self._decided.pop(0) if self._decided else None

    @property
    def all_decided(self) -> bool:
        """Whether every element is part of a decided message."""
        return not self._undecided

    def cycle(self, in_flight: Sequence[Message], now_s: float) -> float | None:
        """Begin a cycle if it is time; the seconds until it will be, or None if an event must come first."""
        self._in_flight = in_flight
        busy = self._cycle is not None or self._decided or len(in_flight) >= self._strategy.ordering.depth
        if busy or not self._undecided or not bool(self._ready.any()):
            return None
        if now_s < self._next_cycle_s:
            return self._next_cycle_s - now_s
        self._cycle = self._talk(now_s)
        self._start(next(self._cycle))
        return None

    def answered(self, answer: Payload) -> None:
        """A control primitive completed."""
        assert self._cycle is not None
        try:
            self._start(self._cycle.send(answer))
        except StopIteration as end:
            self._cycle = None
            self._take_window(end.value)

    def _start(self, primitive: Primitive) -> None:
        self._traffic.count("control", bytes_sent(primitive, self._transport.world))
        self._transport.start(primitive, CONTROL, self._post(CONTROL))

    def _talk(self, now_s: float) -> Generator[Primitive, Payload, Tensor]:
        masks = yield Gather(self._ready.clone())
        window: list[Group] = []
        look_again_s = 0.0
        if self._coordinator is not None:
            everywhere = torch.stack(list(masks)).amin(0).nonzero().view(-1).tolist()
            window = self._coordinator.decide(everywhere, self._in_flight, now_s)
            look_again_s = self._coordinator.look_again_s
        (decisions,) = yield Broadcast(self._encode(window, look_again_s))
        self._next_cycle_s = now_s + int(decisions[0]) * 1e-6
        return decisions

    def _encode(self, window: Sequence[Group], look_again_s: float) -> Tensor:
        """[look again in µs, number of groups, then a group: length, (parameter, start, stop)…]."""
        numbers = [round(look_again_s * 1e6), len(window)]
        for group in window:
            numbers.append(len(group))
            for segment in group:
                numbers += [segment.index, segment.start, segment.stop]
        size = 2 + (NUMBERS_A_SEGMENT + 1) * max(len(self._segments), 16)
        assert len(numbers) <= size, f"a window of {len(numbers)} numbers does not fit into {size}"
        return torch.tensor(numbers + [0] * (size - len(numbers)), dtype=torch.int32)

    def _take_window(self, decisions: Tensor) -> None:
        numbers = decisions.tolist()
        position = 2
        for _ in range(numbers[1]):
            length = numbers[position]
            group = []
            for at in range(position + 1, position + 1 + length * NUMBERS_A_SEGMENT, NUMBERS_A_SEGMENT):
                whole = self._segments[numbers[at]]
                start, stop = numbers[at + 1], numbers[at + 2]
                group.append(Segment(whole.name, whole.shape, start, stop, whole.index, whole.itemsize))
                self._mark_decided(whole.name, stop - start)
            position += 1 + length * NUMBERS_A_SEGMENT
            self._decided.append(Message(self._num_decided, tuple(group)))
            self._num_decided += 1

    def _mark_decided(self, name: str, numel: int) -> None:
        self._undecided[name] -= numel
        if self._undecided[name] == 0:
            del self._undecided[name]
