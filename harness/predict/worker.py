"""One worker on the virtual clock, standing for all of them: the loop, the engine and the link.

Two threads, as in a rank. The main one follows `harness.loop` and the sessions of the system `ours`: wait, update,
forward, backward, parameters ready layer by layer. The communication one follows `harness.engine.communication`,
and asks the same objects: the step's dispatch (a static plan, or the negotiation with rank 0's coordinator) which
message goes next, the step on which lane. Nothing here decides anything of its own.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from baselines.api import Broadcast, Gather, Message, Payload, Primitive, UpdatePoint
from baselines.strategy import Strategy
from harness.engine.communication import Step
from harness.engine.dispatch import StaticDispatch, make_plan
from harness.engine.negotiate import Negotiation
from harness.engine.traffic import FRAMING, Traffic
from harness.engine.transport import Done
from harness.predict.clock import PARK, Clock, Link, Routine, Thread
from harness.predict.costs import LinkCosts, PredictError
from harness.predict.demand import Demand, Demands
from harness.predict.layers import Layers

STALLED = 1e12  # by what computation takes longer while a codec has the device
LEAST_PAUSE_S = 1e-9  # the clock must move, whatever rounding does


@dataclass(slots=True)
class _Flight:
    """A message between its making and its landing."""

    message: Message
    lane: int
    demand: Demand


@dataclass(slots=True)
class Sums:
    """Totals since the start, in seconds, messages and bytes sent by a rank."""

    compute_s: float = 0.0
    communication_s: float = 0.0
    exposed_s: float = 0.0
    num_messages: int = 0
    traffic: Traffic = field(default_factory=Traffic)


@dataclass(slots=True)
class Mark:
    """The totals at the moment of an update."""

    at_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    num_messages: int
    wire_bytes: dict[str, float]


class Worker:
    """Trains on `clock`. `slowdown`: computation takes 1 + slowdown times as long while messages are in flight.

    `plan` replaces what packing and ordering would send, for searches.
    """

    def __init__(
        self,
        clock: Clock,
        layers: Layers,
        strategy: Strategy,
        costs: LinkCosts,
        *,
        slowdown: float = 0.0,
        num_micro_batches: int = 1,
        plan: tuple[Message, ...] | None = None,
    ) -> None:
        self._clock, self._layers, self._strategy, self._costs = clock, layers, strategy, costs
        self._segments = layers.segments
        self._eager = strategy.update_point is UpdatePoint.AT_PRE_HOOK
        self._demands = Demands(strategy, costs)
        self._plan = plan
        if plan is None and strategy.rank_invariant:
            self._plan = make_plan(strategy.packing, self._segments)
        self.sums, self.marks = Sums(), list[Mark]()
        self._events: deque[_Flight | Payload | None] = deque()
        self._flights: dict[int, _Flight] = {}
        self._step: Step | None = None
        self._num_busy, self._busy_since_s = 0, 0.0
        self._device_free_s = self._interpreter_free_s = 0.0
        self._slowdown, self._num_extra = slowdown, num_micro_batches - 1
        self._in_codec = False
        self._link = Link(clock)
        self._communication = Thread(clock, self._communicate())
        self._main: Thread | None = None

    # ---- the main thread

    def train(self, num_steps: int) -> None:
        """Run so many steps, and leave a mark at each update. Raises: PredictError if messages never come."""
        self._go(self._train(num_steps), lambda: len(self.marks) > num_steps)

    def exchange(self, num_times: int) -> None:
        """Like `Engine.exchange_once`, so many times: all gradients ready at once, no computation."""
        self._go(self._exchange(num_times), lambda: len(self.marks) > num_times)

    def _go(self, routine: Routine, done: Callable[[], bool]) -> None:
        self._main = Thread(self._clock, routine, self._slowed)
        if not self._clock.run(done):
            assert self._step is not None
            missing = [name for name, left in self._step.left.items() if left]
            raise PredictError(f"{self._strategy.text}: never sent as a whole: {', '.join(missing[:5])}")

    def _slowed(self) -> float:
        if self._in_codec:
            return STALLED
        return 1.0 + self._slowdown if self._num_busy else 1.0

    def _train(self, num_steps: int) -> Routine:
        for step in range(num_steps + 1):
            if step and not self._eager:
                yield from self._wait(lambda: not self._current.left)
            self._mark()
            yield from self._compute(self._update_s if step else 0.0)
            self._device_free_s = self._clock.now_s
            for layer in self._layers.layers:
                if step and self._eager:
                    for segment in layer.segments:
                        yield from self._wait(partial(self._has_landed, segment.name))
                        yield from self._compute(self._interpreted(self._costs.engine.eager_update_s(segment.nbytes)))
                yield from self._launch(layer.forward_s)
            # all but the last micro-batch send nothing, so it does not matter which one's forward came first
            yield from self._launch(self._num_extra * (self._layers.forward_s + self._layers.backward_s))
            self._begin_step()
            for layer in reversed(self._layers.layers):
                yield from self._launch(layer.backward_s)
                self._announce(segment.index for segment in layer.segments)

    def _exchange(self, num_times: int) -> Routine:
        self._mark()
        for _ in range(num_times):
            self._begin_step()
            self._announce(range(len(self._segments)))
            yield from self._wait(lambda: not self._current.left)
            self._mark()

    @property
    def _update_s(self) -> float:
        if self._eager or self._strategy.updates_on_servers:
            return 0.0
        return self._costs.engine.whole_update_s(len(self._segments), self._layers.num_bytes)

    @property
    def _current(self) -> Step:
        assert self._step is not None
        return self._step

    def _interpreted(self, seconds: float) -> float:
        """How long it takes a thread to do so much of what only one of them can do at a time."""
        start_s = max(self._clock.now_s, self._interpreter_free_s)
        self._interpreter_free_s = start_s + seconds
        return self._interpreter_free_s - self._clock.now_s

    def _has_landed(self, name: str) -> bool:
        return name not in self._current.left

    def _wait(self, done: Callable[[], bool]) -> Routine:
        start_s = self._clock.now_s
        if done():
            return
        while not done():
            yield PARK
        self.sums.exposed_s += self._clock.now_s - start_s
        self._device_free_s = math.inf

    def _compute(self, seconds: float) -> Routine:
        start_s = self._clock.now_s
        if seconds > 0:
            yield seconds
        self.sums.compute_s += self._clock.now_s - start_s

    def _launch(self, seconds: float) -> Routine:
        """A layer on the device, which goes on where the last one ended, unless the loop had to wait: then it starts
        now, and so does what follows. The loop is back when the device is through."""
        now_s = self._clock.now_s
        start_s = now_s if self._device_free_s > now_s else self._device_free_s
        self._device_free_s = start_s + seconds
        if (left_s := self._device_free_s - now_s) > 0:
            yield from self._compute(left_s)
            self._device_free_s = self._clock.now_s  # later than thought where messages slowed it

    def _begin_step(self) -> None:
        left = {segment.name: segment.numel for segment in self._segments}
        number = 0 if self._step is None else self._step.number + 1
        self._step = Step(number, self._new_dispatch(), left, [0] * self._strategy.ordering.depth)

    def _new_dispatch(self) -> StaticDispatch | Negotiation:
        if self._plan is not None:
            return StaticDispatch(self._plan)
        before = self._step.dispatch if self._step is not None else None
        return Negotiation(
            self._strategy,
            self._segments,
            _ControlLane(self._costs, self._link),
            self.sums.traffic,
            self._receive,
            clock=lambda: self._clock.now_s,
            before=before if isinstance(before, Negotiation) else None,
        )

    def _announce(self, indices: Iterable[int]) -> None:
        for index in indices:
            if self._current.dispatch.ready(index):
                self._post(None, self._costs.engine.wake_s)

    def _mark(self) -> None:
        if self._num_busy:
            self._count_busy()
        own = self.sums
        self.marks.append(
            Mark(
                self._clock.now_s,
                own.compute_s,
                own.communication_s,
                own.exposed_s,
                own.num_messages,
                dict(own.traffic.wire_bytes),
            )
        )

    # ---- the communication thread

    def _post(self, event: _Flight | Payload | None, wake_s: float = 0.0) -> None:
        """The thread's waking at a message's end is part of that message's α."""
        self._events.append(event)
        self._communication.wake(wake_s)

    def _receive(self, answer: Payload | Exception) -> None:
        assert not isinstance(answer, Exception)
        self._post(answer)

    def _communicate(self) -> Routine:
        while True:
            while not self._events:
                yield PARK
            event = self._events.popleft()
            if isinstance(event, _Flight):
                yield from self._codec(event.demand.after_s)
                yield self._interpreted(event.demand.engine_s / 2)
                self._land(event)
            elif event is not None:
                assert isinstance(self._current.dispatch, Negotiation)
                self._current.dispatch.answered(event)
            yield from self._send_what_may_go()

    def _send_what_may_go(self) -> Routine:
        step = self._step
        if step is None:
            return
        while (message := step.peek(self._flying(), self._clock.now_s)) and (lane := step.lane()) not in self._flights:
            step.take(lane)
            flight = self._flights[lane] = _Flight(message, lane, self._demands.of(message))
            self._change_busy(1)
            yield self._interpreted(flight.demand.engine_s / 2)
            yield from self._codec(flight.demand.before_s)
            phases = self._costs.phases(flight.demand.alpha_s, flight.demand.bytes_s)
            self._link.carry(*phases, partial(self._post, flight))
        if isinstance(step.dispatch, Negotiation):
            pause_s = step.dispatch.cycle(step.taken(self._flying()), self._clock.now_s)
            if pause_s is not None:
                self._clock.after(pause_s + LEAST_PAUSE_S, lambda: self._post(None))

    def _codec(self, seconds: float) -> Routine:
        """The device compresses and computes nothing else."""
        if seconds > 0:
            self._in_codec = True
            self._respeed()
            yield seconds
            self._in_codec = False
            self._respeed()

    def _respeed(self) -> None:
        if self._main is not None:
            self._main.respeed()

    def _flying(self) -> list[Message]:
        return [flight.message for flight in self._flights.values()]

    def _land(self, flight: _Flight) -> None:
        left = self._current.left
        for segment in flight.message.segments:
            left[segment.name] -= segment.numel
            if left[segment.name] == 0:
                del left[segment.name]
        del self._flights[flight.lane]
        self.sums.num_messages += 1
        self.sums.traffic.count("gradient", flight.demand.sent_bytes)
        self.sums.traffic.count(FRAMING, flight.demand.framing_bytes)
        self._change_busy(-1)
        assert self._main is not None
        self._main.wake(self._costs.engine.wake_s)

    def _change_busy(self, change: int) -> None:
        if self._num_busy:
            self._count_busy()
        self._num_busy += change
        self._busy_since_s = self._clock.now_s
        if self._main is not None and self._slowdown:
            self._main.respeed()

    def _count_busy(self) -> None:
        self.sums.communication_s += self._clock.now_s - self._busy_since_s
        self._busy_since_s = self._clock.now_s


@dataclass(frozen=True, slots=True)
class _ControlLane:
    """The transport of a negotiation among equal workers: what one has ready, all have."""

    costs: LinkCosts
    link: Link
    rank: int = 0

    @property
    def world(self) -> int:
        return self.costs.world

    def start(self, primitive: Primitive, lane: int, done: Done) -> None:
        assert isinstance(primitive, Gather | Broadcast), f"{primitive} is no control primitive"
        tensor = primitive.tensor
        cost = self.costs.of(type(primitive).__name__)
        phases = self.costs.phases(cost.alpha_s, cost.beta_s_per_byte * tensor.numel() * tensor.element_size())
        self.link.carry(*phases, lambda: done((tensor,)))

    def close(self) -> None:
        """Nothing is held."""


def bound(strategy: Strategy, layers: Layers, costs: LinkCosts) -> Strategy:
    """The strategy with its planning policies bound to these costs, as the engine binds them."""
    if not strategy.needs_costs:
        return strategy
    link = costs.one_of_many(strategy.ordering.depth)
    return strategy.bound(layers.costs(link.alpha_s, link.beta_s_per_byte))
