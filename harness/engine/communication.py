"""The communication thread of a rank: owns every message from its making to its landing.

What it must know reaches it as an event on one queue: a message can be made, a primitive
completed, the link is ours. It asks the pure policies what to do and acts:

    dispatch ─► message ─► compressor ─► exchange ─► transport ─► gradient = mean
    (plan or negotiation)      (generators of primitives)

A message is packed and compressed as soon as a lane is free, before the link is ours, so that
the link never waits for a processor.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from baselines.api import Context, Message, Payload, Reduced, Serve, State
from baselines.strategy import Strategy
from crossover.arbiter.scheduling import short_slices
from harness.engine.buffers import BufferPool, flatten_gradients, scatter_gradients
from harness.engine.dispatch import StaticDispatch
from harness.engine.link_turns import LinkTurns
from harness.engine.negotiate import Negotiation
from harness.engine.reduction import MessageRun, Reduces, Tagged, reduce_message
from harness.engine.shards import Shards
from harness.engine.streams import Streams
from harness.engine.traffic import Traffic
from harness.engine.transport import CONTROL, Transport
from harness.precision import Guard
from harness.trace import Recorder

TAIL = 0.125  # of a step's elements; with less than this on its way a job gives the link back


@dataclass(slots=True)
class Step:
    """One step's messages: who decides on them, and how many elements of each parameter are out.

    `landed` grows under `changed`, which is notified when what the main thread waits for has landed.
    """

    number: int
    dispatch: StaticDispatch | Negotiation
    left: dict[str, int]
    lane_bytes: list[int]
    loss_scale: float = 1.0
    landed: set[str] = field(default_factory=set)
    unsent: int = field(init=False)  # elements that no started message carries
    num_elements: int = field(init=False)
    _next: Message | None = None

    def __post_init__(self) -> None:
        self.num_elements = self.unsent = sum(self.left.values())

    def peek(self, in_flight: Sequence[Message], now_s: float) -> Message | None:
        """The message that goes next, if it may go now."""
        if self._next is None:
            self._next = self.dispatch.next()
        if self._next is None or not self.dispatch.may_go(self._next, in_flight, now_s):
            return None
        return self._next

    def taken(self, in_flight: Sequence[Message]) -> Sequence[Message]:
        """`in_flight`, and the message that waits for a lane."""
        return in_flight if self._next is None else [*in_flight, self._next]

    def lane(self) -> int:
        """Where the next message goes: the lane that has carried the fewest bytes in this step.

        Every rank must come to the same answer, so what is in flight just here does not count.
        """
        return min(range(len(self.lane_bytes)), key=self.lane_bytes.__getitem__)

    def take(self, lane: int) -> None:
        """The next message goes on `lane`."""
        assert self._next is not None
        self.lane_bytes[lane] += self._next.nbytes
        self._next = None


@dataclass(slots=True)
class _Flight:
    """A message on its way: its generator, the flat gradient it carries, where it runs."""

    message: Message
    run: MessageRun
    flat: Tensor
    lane: int
    started_s: float
    on_link: bool = False


class Communication:
    """Runs until `stop`. `error` is set, and `changed` notified, when it failed."""

    def __init__(
        self,
        strategy: Strategy,
        parameters: Mapping[str, nn.Parameter],
        states: Mapping[str, State],
        transport: Transport,
        *,
        recorder: Recorder,
        generator: torch.Generator,
        streams: Streams,
        link: LinkTurns | None,
        guard: Guard | None = None,
        compressor: Reduces | None = None,
    ) -> None:
        self._guard = guard
        self._strategy, self._parameters, self._states = strategy, parameters, states
        self._compressor = compressor or strategy.compression  # one that is charged for in replay
        self._transport, self._recorder, self._generator = transport, recorder, generator
        self._streams = streams
        self.shards = Shards(parameters, strategy.optimizer)  # empty where no server steps
        self._num_workers = strategy.num_workers(transport.world)
        self._link, self._has_link, self._asked_link = link, link is None, False
        self._held: list[tuple[_Flight, Tagged]] = []
        self._pools: defaultdict[int, BufferPool] = defaultdict(BufferPool)  # a buffer stays on its lane's stream
        self._flights: dict[int, _Flight] = {}
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self.traffic = Traffic()
        self.changed = threading.Condition()
        self._awaited: Callable[[], bool] | None = None  # what the main thread waits for
        self.error: BaseException | None = None
        self._step: Step | None = None
        self._thread = threading.Thread(target=self._run, name="communication", daemon=True)
        self._thread.start()

    # ---- for the main thread

    def begin(self, step: Step) -> None:
        """Work on `step` from now on; the one before is complete."""
        self._step = step

    def wake(self) -> None:
        """Gradients became ready and the dispatch says that this matters."""
        self._events.put(("wake",))

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Block the main thread until `done()`, which depends on what has landed, or until communication has failed."""
        with self.changed:
            self._awaited = done
            self.changed.wait_for(lambda: done() or self.error is not None)
            self._awaited = None

    def stop(self) -> None:
        """End the thread and what it holds."""
        self._events.put(("stop",))
        self._thread.join(timeout=10)
        self._transport.close()
        if self._link is not None:
            self._link.leave()

    def receiver(self, lane: int) -> Callable[[Payload | Exception], None]:
        """What a transport calls with the answer of a primitive on `lane`."""
        return lambda answer: self._events.put(("done", lane, answer))

    # ---- the thread

    def _run(self) -> None:
        try:
            with short_slices():
                self._serve()
        except BaseException as error:  # noqa: BLE001  reported by every later call of the main thread
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def _serve(self) -> None:
        timeout_s: float | None = None
        while True:
            try:
                event = self._events.get(timeout=timeout_s)
            except Empty:
                event = ("wake",)
            match event:
                case ("stop",):
                    return
                case ("link", error):
                    self._take_link(error)
                case ("done", lane, answer):
                    self._advance(lane, answer)
            timeout_s = self._send_what_may_go() if self._step is not None else None

    def _send_what_may_go(self) -> float | None:
        """Make messages while a lane is free; the seconds after which to look again, if any."""
        step = self._step
        assert step is not None
        while (message := step.peek(self._flying(), perf_counter())) and (lane := step.lane()) not in self._flights:
            step.take(lane)
            with self._streams.lane(lane):
                self._launch(message, lane, step)
        if isinstance(step.dispatch, Negotiation):
            return step.dispatch.cycle(step.taken(self._flying()), perf_counter())
        return None

    def _flying(self) -> list[Message]:
        return [flight.message for flight in self._flights.values()]

    def _launch(self, message: Message, lane: int, step: Step) -> None:
        self._streams.wait_ready(segment.name for segment in message.segments)
        scale = 1.0 / self._num_workers / step.loss_scale
        flat = flatten_gradients(message, self._parameters, self._pools[lane], scale=scale)
        if self._guard is not None:
            self._guard.outgoing(flat)
        rank, world = self._transport.rank, self._transport.world
        ctx = Context(rank, world, step.number, message, self._generator, num_workers=self._num_workers)
        run = reduce_message(self._compressor, self._strategy.exchange, flat, self._states, ctx)
        self._flights[lane] = _Flight(message, run, flat, lane, perf_counter())
        self._drive(self._flights[lane], None)
        self.traffic.num_messages += 1

    def _advance(self, lane: int, answer: Payload | Exception) -> None:
        if isinstance(answer, Exception):
            raise answer
        if lane == CONTROL:
            assert self._step is not None, "an answer to a question nobody asked"
            assert isinstance(self._step.dispatch, Negotiation), "a static plan has nothing to negotiate"
            self._step.dispatch.answered(answer)
            for start_s, end_s in self._step.dispatch.cycles_s:
                self._recorder.add("control", "cycle", start_s, end_s)
            self._step.dispatch.cycles_s.clear()
        else:
            with self._streams.lane(lane):
                self._drive(self._flights[lane], answer)

    def _drive(self, flight: _Flight, answer: Payload | None) -> None:
        """Drive one message's generator to its next primitive, or to its end."""
        start_s = perf_counter()
        try:
            tagged = next(flight.run) if answer is None else flight.run.send(answer)
            while isinstance(tagged.primitive, Serve):
                tagged = flight.run.send((self._serve_update(flight.message, tagged.primitive),))
        except StopIteration as end:
            self._land(flight, end.value)
        else:
            self._start(flight, tagged)
        self._recorder.add("codec", "encode" if answer is None else "decode", start_s, perf_counter())

    def _serve_update(self, message: Message, serve: Serve) -> Tensor:
        assert self._step is not None
        return self.shards.step(message, serve, self._step.number)

    def _start(self, flight: _Flight, tagged: Tagged) -> None:
        if not flight.on_link and not self._has_link:
            self._held.append((flight, tagged))
            self._ask_for_link()
            return
        if not flight.on_link:
            assert self._step is not None
            flight.on_link = True
            self._step.unsent -= flight.message.numel
        self.traffic.send(tagged.tag, tagged.primitive, self._transport.world)
        self._transport.start(tagged.primitive, flight.lane, self.receiver(flight.lane))

    def _land(self, flight: _Flight, reduced: Reduced) -> None:
        """A message is complete: hand its gradients back."""
        assert self._step is not None
        if self._guard is not None:
            self._guard.incoming(reduced.value)
        scatter_gradients(flight.message, reduced.value, self._parameters)
        self._streams.mark_landed(segment.name for segment in flight.message.segments)
        self._pools[flight.lane].give_back(flight.flat)
        del self._flights[flight.lane]
        name = f"message {flight.message.index}"
        self._recorder.add(f"lane {flight.lane}", name, flight.started_s, perf_counter())
        left = self._step.left
        for segment in flight.message.segments:
            left[segment.name] -= segment.numel
        complete = [segment.name for segment in flight.message.segments if left.get(segment.name) == 0]
        for name in complete:
            left.pop(name, None)
        self._give_link_back()
        if complete:  # waking the main thread costs as much as sending: only when what it waits for is there
            with self.changed:
                self._step.landed.update(complete)
                if self._awaited is not None and self._awaited():
                    self.changed.notify_all()

    # ---- link turns

    def _ask_for_link(self) -> None:
        if self._link is not None and not self._asked_link:
            self._asked_link = True
            self._link.request(lambda error: self._events.put(("link", error)))

    def _take_link(self, error: Exception | None) -> None:
        if error is not None:
            raise error
        self._has_link = True
        held, self._held = self._held, []
        for flight, tagged in held:
            flight.started_s = perf_counter()
            with self._streams.lane(flight.lane):
                self._start(flight, tagged)

    def _give_link_back(self) -> None:
        """Once only a short tail is on its way: the next job's first message then fills the gaps of the last one's
        ring, and a tail delays nobody for long."""
        step = self._step
        if self._link is None or not self._has_link or step is None or step.unsent:
            return
        if sum(flight.message.numel for flight in self._flights.values()) <= TAIL * step.num_elements:
            self._link.release()
            self._has_link = self._asked_link = False
