"""Negotiation: which messages go next, agreed over ranks that see gradients at different times.

A cycle: every rank sends the set of its ready gradients to rank 0 (one byte per parameter); rank 0
asks the policies about what is ready everywhere and broadcasts a window of decisions. Few ranks gather their sets
everywhere instead and decide alike, where the order is the packing's own and so depends on these sets alone. A rank
takes part when it has ready but undecided gradients (of a plan: a whole message of them, since no part
of one can go), the link is free and the cycle time is over,
or at once when its backward is complete: nothing more can join. All parts are primitives that the core starts on the
control lane, and count as bytes under the tag `control`.

Where a packing looks at what is ready, the step before says when it is asked best. If its messages travelled for much
longer than its backward took, the link is what a step waits for, and what goes during backward is won: the first cycle
comes half-way through backward at the latest. Else rounds and messages take processors from backward: a rank that
expects its last gradient within the time of some rounds takes part when it is there, since that gradient would need a
round and a message of its own, behind backward.

An order that may change is decided some messages ahead (`LookAhead`, or the ordering's credit): a round under way takes
milliseconds behind the data of messages in flight, and lanes should not wait for it. A rank takes part as soon as what
is decided and has not started is no more than starts in a round; rank 0 measures and tells. When everything is ready
everywhere one window decides the rest. So what becomes urgent waits for what is in flight, decided, and one round.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable, Generator, Sequence
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from baselines.api import AllGather, Broadcast, Gather, Message, Payload, Primitive, Segment
from baselines.strategy import Strategy
from fabric.collectives import Collective, load_of
from harness.engine.dispatch import (
    DEFAULT_CYCLE_S,
    LARGEST_SHARE,
    NUMBERS_A_SEGMENT,
    Coordinator,
    LookAhead,
    Needs,
    credit_of,
    make_plan,
    needs_of,
)

HEADER = 3  # numbers before a window's messages
LARGEST_NUMBER = 2**31 - 1
LARGEST_WINDOW = 256  # messages of a plan; the next round is on its way long before so many have started
# Messages travel so many times backward's length where the link is what a step waits for. On links without a limit they
# take 0.4 to 1.5 times as long (ResNet-20 and BERT-tiny on two ranks): processors have both to do.
LINK_BOUND = 1.5
NEAR_ROUNDS = 3.0  # within the time of so many rounds a last gradient is waited for; 1 and 2 are slower, 5 is no faster
CREDIT_USED = 0.75  # of its credit an ordering has used when the next round begins: one round decides several messages

ControlPrimitive = AllGather | Gather | Broadcast  # what a round of control consists of


class Negotiation:
    """One step's negotiation on one rank. `clock` is the one that `cycle` is asked with. What the step `before` learned
    is kept."""

    def __init__(
        self,
        strategy: Strategy,
        segments: Sequence[Segment],
        rank: int,
        world: int,
        look_again_s: float = DEFAULT_CYCLE_S,
        *,
        clock: Callable[[], float] = perf_counter,
        before: Negotiation | None = None,
    ) -> None:
        self._strategy, self._segments, self._clock = strategy, segments, clock
        self.look_again_s: float = look_again_s if before is None else before.look_again_s
        self._plan, self._needs = self._plan_of(before)
        self._missing, self._num_whole = list(self._needs.num_parameters), 0  # written by the main thread
        # A broadcast has a fixed size, so ranks that do not know the window can receive it.
        num_numbers = min(len(self._plan), LARGEST_WINDOW) if self._plan is not None else 0
        self._capacity = num_numbers or (NUMBERS_A_SEGMENT + 1) * max(len(segments), 16)
        self._decides_alike = strategy.ordering.rank_invariant and all_gather_is_shorter(world)
        self._coordinator = (
            Coordinator(strategy.packing, strategy.ordering, segments, self._plan, self._capacity, self._needs)
            if rank == 0 or self._decides_alike
            else None
        )
        limit_bytes = min(int(LARGEST_SHARE * sum(segment.nbytes for segment in segments)), LARGEST_NUMBER)
        self._ahead: LookAhead = LookAhead(limit_bytes, 0 if before is None else before._ahead.nbytes)
        # When gradients came, how long rounds took and how long messages travelled; all of it in the step before.
        self._first_s = self._last_s = 0.0
        self._rounds_s: list[float] = []
        self._backward_s: float = 0.0 if before is None else before._last_s - before._first_s
        self._round_s: float = 0.0 if before is None or not before._rounds_s else median(before._rounds_s)
        self._num_travelling, self._since_s, self._travelled_s = 0, 0.0, 0.0
        self._is_link_bound: bool = (
            before is not None and self._plan is None and before._travelled_s > LINK_BOUND * self._backward_s > 0
        )
        self._credit_bytes = credit_of(strategy.ordering)
        self._ready = bytearray(len(segments))  # written by the main thread
        self._waiting: set[str] = set()
        self._lock = threading.Lock()
        self.cycles_s: list[tuple[float, float]] = []  # start and end of each cycle so far
        self._undecided = {segment.name: segment.numel for segment in segments}
        self._decided: deque[Message] = deque()
        self._queued_bytes = self._started_bytes = self._num_decided = 0
        self._cycle: Generator[Primitive, Payload, Sequence[Message]] | None = None
        self._next_cycle_s = 0.0
        self._in_flight: Sequence[Message] = ()

    def _plan_of(self, before: Negotiation | None) -> tuple[tuple[Message, ...] | None, Needs]:
        """All messages of a step where every rank can make them alike, and what they need: then only their numbers are
        told."""
        packing = self._strategy.packing
        if not packing.rank_invariant:
            return None, needs_of(())
        # Making a plan walks over all segments; most steps have the packing and layout of the step before.
        if before is not None and before._strategy.packing is packing and before._segments is self._segments:
            return before._plan, before._needs
        plan = make_plan(packing, self._segments)
        return plan, needs_of(plan)

    def ready(self, index: int) -> bool:
        """The gradient of parameter `index` is ready on this rank; whether the next cycle should
        be thought about: with the first that waits, since it sets the clock, and with the last.

        The first cycle comes after half a pause, the mean wait for a clock that always runs; or half-way through
        backward, if the link is what a step waits for and that is sooner."""
        with self._lock:
            self._last_s = self._clock()
            if not any(self._ready):
                span_s = min(self.look_again_s, self._backward_s) if self._is_link_bound else self.look_again_s
                self._first_s, self._next_cycle_s = self._last_s, self._last_s + span_s / 2
            self._ready[index] = 1
            if self._plan is None:
                self._waiting.add(self._segments[index].name)
                return len(self._waiting) == 1 or all(self._ready)
            whole = self._needs.one_more(index, self._missing)
            self._num_whole += len(whole)
            return bool(whole) or all(self._ready)

    @property
    def _could_decide(self) -> bool:
        """Whether a round could, if the other ranks are as far as this one."""
        return bool(self._waiting) if self._plan is None else self._num_whole > self._num_decided

    def next(self) -> Message | None:
        """The next decided message, in the agreed order."""
        if not self._decided:
            return None
        message = self._decided.popleft()
        if not self._num_travelling:
            self._since_s = self._clock()
        self._num_travelling += 1
        self._queued_bytes -= message.nbytes
        self._started_bytes += message.nbytes
        return message

    def landed(self) -> None:
        """A message taken by `next` is complete."""
        self._num_travelling -= 1
        if not self._num_travelling:
            self._travelled_s += self._clock() - self._since_s

    def may_go(self, message: Message, in_flight: Sequence[Message], now_s: float) -> bool:
        """Whether the ordering lets the next message of the agreed order go now, given what is in flight here."""
        return self._strategy.ordering.pick((message,), in_flight, now_s) is not None

    @property
    def all_decided(self) -> bool:
        """Whether every element is part of a decided message."""
        return not self._undecided

    def cycle(self, in_flight: Sequence[Message], now_s: float) -> Primitive | float | None:
        """The primitive that begins a cycle if it is time, or the seconds until it will be, or None if an event must
        come first. `in_flight`: messages taken by `next` that are not complete."""
        self._in_flight = in_flight
        complete = all(self._ready)
        if self._cycle is not None or not self._could_decide or self._is_too_early(complete):
            return None
        begin_s = self._next_cycle_s
        if self._strategy.ordering.rank_invariant:
            begin_s = max(begin_s, self._with_the_last(now_s))
        if now_s < begin_s and not complete:
            return begin_s - now_s
        self._cycle = self._talk(now_s)
        return next(self._cycle)

    def _is_too_early(self, complete: bool) -> bool:
        """Whether deciding now would bind too much. A packing that looks at what is ready packs best when the link has
        nothing to do, or when nothing more can become ready; an order that may change is decided as late as a round
        allows."""
        if self._strategy.ordering.rank_invariant:
            return bool(self._decided) or (bool(self._in_flight) and not complete)
        if complete:
            return False
        if self._credit_bytes is not None:
            used_bytes = self._queued_bytes + sum(message.nbytes for message in self._in_flight)
            return used_bytes > CREDIT_USED * self._credit_bytes
        return self._queued_bytes > self._ahead.nbytes

    def _with_the_last(self, now_s: float) -> float:
        """When a round begins at the latest that waits for the last gradient; now, if that one is not near."""
        if self._is_link_bound:
            return now_s
        due_s, near_s = self._first_s + self._backward_s, NEAR_ROUNDS * self._round_s
        return due_s + near_s if abs(due_s - now_s) < near_s else now_s

    def answered(self, answer: Payload) -> Primitive | None:
        """A control primitive completed; the cycle's next one, if any."""
        assert self._cycle is not None, "an answer to a question nobody asked"
        try:
            return self._cycle.send(answer)
        except StopIteration as end:
            self._cycle = None
            self._take(end.value)
            return None

    def _talk(self, now_s: float) -> Generator[Primitive, Payload, Sequence[Message]]:
        mask = torch.frombuffer(bytearray(self._ready), dtype=torch.uint8)
        window = yield from (self._alike(mask, now_s) if self._decides_alike else self._as_told(mask, now_s))
        end_s = self._clock()
        self.cycles_s.append((now_s, end_s))
        self._rounds_s.append(end_s - now_s)
        # From the cycle's start, not its end: the clock ticks at the asked rate however long a round takes.
        self._next_cycle_s = now_s + self.look_again_s
        return window

    def _alike(self, mask: Tensor, now_s: float) -> Generator[Primitive, Payload, Sequence[Message]]:
        """Every rank decides on what all have ready."""
        masks = yield AllGather(mask)
        assert self._coordinator is not None, "a rank that decides is its own coordinator"
        window = self._coordinator.decide(_everywhere(masks), (), now_s)
        self.look_again_s = self._coordinator.look_again_s
        return window

    def _as_told(self, mask: Tensor, now_s: float) -> Generator[Primitive, Payload, Sequence[Message]]:
        """Rank 0 decides, and tells."""
        started_bytes, was_dry = self._started_bytes, self._is_dry
        masks = yield Gather(mask)
        told, look_again_s, had_waiting = list[Message](), 0.0, False
        if self._coordinator is not None:
            had_waiting = self._coordinator.has_waiting
            told = self._coordinator.decide(
                _everywhere(masks),
                self._in_flight,
                now_s,
                queued=tuple(self._decided),
                ahead_bytes=self._ahead.nbytes,
            )
            look_again_s = self._coordinator.look_again_s
        (decisions,) = yield Broadcast(self._encode(told, look_again_s))
        # A round that began with idle lanes says nothing about how much starts while one is under way.
        if had_waiting and not was_dry:
            told_bytes = sum(message.nbytes for message in told)
            self._ahead.learn(self._started_bytes - started_bytes, told_bytes, self._is_dry)
        return self._decoded(decisions)

    @property
    def _is_dry(self) -> bool:
        """Whether a lane has nothing to carry."""
        return not self._decided and len(self._in_flight) < self._strategy.ordering.depth

    def _encode(self, window: Sequence[Message], look_again_s: float) -> Tensor:
        """[look again in µs, bytes decided ahead, number of messages, then the messages]: of a plan their index, else
        each as its length, (parameter, start, stop)…"""
        numbers = [round(look_again_s * 1e6), self._ahead.nbytes, len(window)]
        for message in window:
            if self._plan is not None:
                numbers.append(message.index)
                continue
            numbers.append(len(message.segments))
            for segment in message.segments:
                numbers += [segment.index, segment.start, segment.stop]
        size = HEADER + self._capacity
        assert len(numbers) <= size, f"a window of {len(numbers)} numbers does not fit into {size}"
        padded = array("i", bytes(size * array("i").itemsize))
        padded[: len(numbers)] = array("i", numbers)
        # A list of numbers would be looked at one by one.
        return torch.frombuffer(padded, dtype=torch.int32)

    def _decoded(self, decisions: Tensor) -> Sequence[Message]:
        """The window that `decisions` tell, and what else they do."""
        numbers = decisions.tolist()
        self.look_again_s = numbers[0] * 1e-6
        if self._coordinator is None:
            self._ahead.nbytes = numbers[1]
        window, position = list[Message](), HEADER
        for _ in range(numbers[2]):
            if self._plan is not None:
                segments, length = self._plan[numbers[position]].segments, 0
            else:
                length = numbers[position] * NUMBERS_A_SEGMENT
                segments = tuple(
                    self._segment(*numbers[at : at + NUMBERS_A_SEGMENT])
                    for at in range(position + 1, position + 1 + length, NUMBERS_A_SEGMENT)
                )
            position += 1 + length
            # Numbered as decided, which is the same on all ranks.
            window.append(Message(self._num_decided + len(window), segments))
        return window

    def _take(self, window: Sequence[Message]) -> None:
        self._decided.extend(window)
        self._num_decided += len(window)
        for message in window:
            self._queued_bytes += message.nbytes
            self._mark_decided(message.segments)

    def _segment(self, index: int, start: int, stop: int) -> Segment:
        whole = self._segments[index]
        if whole.start == start and whole.stop == stop:
            return whole
        return Segment(whole.name, whole.shape, start, stop, whole.index, whole.dtype)

    def _mark_decided(self, segments: Sequence[Segment]) -> None:
        undecided, whole = self._undecided, list[str]()
        for segment in segments:
            name = segment.name
            undecided[name] = left = undecided[name] - segment.numel
            if left == 0:
                del undecided[name]
                whole.append(name)
        with self._lock:
            self._waiting.difference_update(whole)


def _everywhere(masks: Payload) -> Sequence[int]:
    """The parameters that all have ready."""
    # The minimum of the bytes is a logical and.
    common = torch.stack(list(masks)).amin(0).tolist()
    return [index for index, is_ready in enumerate(common) if is_ready]


def all_gather_is_shorter(world: int) -> bool:
    """Whether what each of `world` ranks has reaches all of them sooner than by way of rank 0."""
    by_way = load_of(Collective.GATHER, world).num_rounds + load_of(Collective.BROADCAST, world).num_rounds
    return load_of(Collective.ALL_GATHER, world).num_rounds < by_way
