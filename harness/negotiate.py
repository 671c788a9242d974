"""Negotiation: which messages go next, agreed over ranks that see gradients at different times.

A cycle: every rank sends the set of its ready gradients to rank 0 (one byte a parameter); rank 0
asks the policies about what is ready everywhere and broadcasts a window of decisions. A rank
takes part when it has ready but undecided gradients, the link is free and the cycle time is over,
or at once when its backward is complete: nothing more can join. Both parts are primitives on the
control lane and count as bytes under the tag `control`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from time import perf_counter

import torch
from torch import Tensor

from baselines.api import Broadcast, Gather, Group, Message, Payload, Primitive, Segment
from baselines.strategy import Strategy
from harness.dispatch import DEFAULT_CYCLE_S, Coordinator
from harness.traffic import Traffic, bytes_sent
from harness.transport import CONTROL, Transport

Receive = Callable[[Payload | Exception], None]
NUMBERS_A_SEGMENT = 3


class Negotiation:
    """One step's negotiation on one rank. `traffic` counts, `receive` gets answers of control
    primitives, `clock` is the one that `cycle` is asked with."""

    def __init__(
        self,
        strategy: Strategy,
        segments: Sequence[Segment],
        transport: Transport,
        traffic: Traffic,
        receive: Receive,
        look_again_s: float = DEFAULT_CYCLE_S,
        *,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._strategy, self._segments, self._transport = strategy, segments, transport
        self._traffic, self._receive, self._clock = traffic, receive, clock
        self.look_again_s = look_again_s
        self._coordinator = Coordinator(strategy.packing, strategy.ordering, segments) if transport.rank == 0 else None
        self._ready = bytearray(len(segments))  # written by the main thread
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self.cycles_s: list[tuple[float, float]] = []  # start and end of each cycle so far
        self._undecided = {segment.name: segment.numel for segment in segments}
        self._decided: list[Message] = []
        self._num_decided = 0
        self._cycle: Generator[Primitive, Payload, Tensor] | None = None
        self._next_cycle_s = 0.0
        self._in_flight: Sequence[Message] = ()

    def ready(self, index: int) -> bool:
        """The gradient of parameter `index` is ready on this rank; whether the next cycle should
        be thought about: with the first that waits, since it sets the clock, and with the last.

        The first cycle comes after half a pause: the mean wait for a clock that always runs."""
        with self._lock:
            if not any(self._ready):
                self._next_cycle_s = self._clock() + self.look_again_s / 2
            self._ready[index] = 1
            self._waiting.add(self._segments[index].name)
            return len(self._waiting) == 1 or all(self._ready)

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
        complete = all(self._ready)
        if self._cycle is not None or self._decided or not self._waiting or self._is_too_early(complete):
            return None
        if now_s < self._next_cycle_s and not complete:
            return self._next_cycle_s - now_s
        self._cycle = self._talk(now_s)
        self._start(next(self._cycle))
        return None

    def _is_too_early(self, complete: bool) -> bool:
        """Whether deciding now would bind too much. A packing that looks at what is ready packs
        best when the link has nothing to do, or when nothing more can become ready; an order that
        may change is decided when a lane is free."""
        if not self._strategy.ordering.rank_invariant or self._strategy.packing.rank_invariant:
            return len(self._in_flight) >= self._strategy.ordering.depth
        return bool(self._in_flight) and not complete

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
        self._transport.start(primitive, CONTROL, self._receive)

    def _talk(self, now_s: float) -> Generator[Primitive, Payload, Tensor]:
        masks = yield Gather(torch.frombuffer(bytearray(self._ready), dtype=torch.uint8))
        window: list[Group] = []
        look_again_s = 0.0
        if self._coordinator is not None:
            everywhere = torch.stack(list(masks)).amin(0).nonzero().view(-1).tolist()
            window = self._coordinator.decide(everywhere, self._in_flight, now_s)
            look_again_s = self._coordinator.look_again_s
        (decisions,) = yield Broadcast(self._encode(window, look_again_s))
        self.cycles_s.append((now_s, self._clock()))
        self.look_again_s = int(decisions[0]) * 1e-6
        self._next_cycle_s = now_s + self.look_again_s
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
            with self._lock:
                self._waiting.discard(name)
