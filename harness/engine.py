"""The engine: turns gradients into messages and sends them while training goes on.

One communication thread a rank owns all state. Everything reaches it as an event on one queue:
a gradient became ready (from autograd's hooks), a primitive completed (from the transport), a
step began or its backward ended. It asks the pure policies what to do and acts:

    gradient ready ─► dispatch ─► message ─► compressor ─► exchange ─► transport ─► gradient = mean
                        (plan or negotiation)        (generators of primitives)

The main thread waits in `wait` (all messages) or `wait_for` (one parameter, for AT_PRE_HOOK).
Gradients are divided by the number of ranks before they are compressed, as DDP does. A
parameter without a gradient in this step counts as zero.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from baselines.api import Broadcast, Context, Message, Payload, Reduced, State
from baselines.strategy import Strategy
from harness.buffers import BufferPool, flatten_gradients, scatter_gradients
from harness.dispatch import StaticDispatch, make_plan
from harness.layout import lay_out, rank_generator, trainable_parameters
from harness.link_turns import LinkTurns
from harness.negotiate import Negotiation
from harness.reduction import MessageRun, reduce_message
from harness.trace import Recorder
from harness.traffic import Traffic, bytes_sent
from harness.transport import CONTROL, Transport


class EngineError(RuntimeError):
    """Communication failed; the message says at what, the cause is attached."""


@dataclass(slots=True)
class _Flight:
    """A message on its way: its generator, the flat gradient it carries, where it runs."""

    message: Message
    run: MessageRun
    flat: Tensor
    lane: int
    started_s: float


class Engine:
    """Reduces the gradients of `model` over the ranks of `transport`, as `strategy` decides."""

    def __init__(
        self,
        model: nn.Module,
        strategy: Strategy,
        transport: Transport,
        *,
        recorder: Recorder,
        seed: int = 0,
        link: LinkTurns | None = None,
    ) -> None:
        self.strategy, self.transport, self.recorder = strategy, transport, recorder
        self.traffic = Traffic()
        self._link, self._has_link, self._asked_link = link, link is None, False
        self.parameters = trainable_parameters(model)
        self.states: dict[str, State] = {n: strategy.compression.init(n, p) for n, p in self.parameters.items()}
        self._generator = rank_generator(seed, transport.rank)
        self._pool = BufferPool()
        self._events: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
        self._step = -1
        self._muted = False
        self._error: BaseException | None = None
        self._idle = threading.Event()
        self._idle.set()
        self._reduced = {name: threading.Event() for name in self.parameters}
        self._observed: list[str] = []
        self._lay_out(list(self.parameters))
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(n)) for n, p in self.parameters.items()]
        self._thread = threading.Thread(target=self._run, name="communication", daemon=True)
        self._thread.start()

    # ---- main thread

    def begin_step(self) -> None:
        """Announce a step; the gradients of its backward will be reduced."""
        self._check()
        self._step += 1
        self._seen: set[str] = set()
        for event in self._reduced.values():
            event.clear()
        self._idle.clear()
        self._events.put(("begin", self._step))

    def end_backward(self) -> None:
        """Backward has ended: parameters that got no gradient are sent as zeros."""
        for name, parameter in self.parameters.items():
            if name not in self._seen:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._announce(name)

    def wait(self) -> None:
        """Block until every message of the step is complete.

        Raises: EngineError if communication failed.
        """
        start_s = perf_counter()
        self._idle.wait()
        self.recorder.add("loop", "exposed", start_s, perf_counter())
        self._check()
        if self._step == 0 and self._observed:
            self._agree_on_ready_order()

    def wait_for(self, name: str) -> None:
        """Block until the gradient of one parameter is reduced."""
        start_s = perf_counter()
        self._reduced[name].wait()
        self.recorder.add("loop", "exposed", start_s, perf_counter())
        self._check()

    def mute(self, muted: bool) -> None:
        """While muted, gradients stay local: for measuring compute alone."""
        self._muted = muted

    def exchange_once(self) -> None:
        """Send the present gradients once more, all ready at once: for measuring the link alone."""
        self.begin_step()
        self.end_backward()
        self.wait()

    def close(self) -> None:
        """Stop the communication thread and remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._events.put(("stop",))
        self._thread.join(timeout=10)
        self.transport.close()
        if self._link is not None:
            self._link.leave()

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if not self._muted:
                self._announce(name)

        return ready

    def _announce(self, name: str) -> None:
        self._seen.add(name)
        if self._step == 0:
            self._observed.append(name)
        self._events.put(("ready", self._index[name], perf_counter()))

    def _check(self) -> None:
        if self._error is not None:
            raise EngineError(f"communication failed: {self._error}") from self._error

    def _agree_on_ready_order(self) -> None:
        """After the first step the layout follows the order seen on rank 0, as DDP's rebuild does."""
        names = list(self.parameters)
        order = torch.tensor([names.index(name) for name in self._observed], dtype=torch.int32)
        done: SimpleQueue[Payload | Exception] = SimpleQueue()
        self.transport.start(Broadcast(order), CONTROL, done.put)
        answer = done.get()
        if isinstance(answer, Exception):
            raise EngineError(f"communication failed: {answer}") from answer
        self._observed = []
        self._lay_out([names[position] for position in order.tolist()])

    def _lay_out(self, order: Sequence[str]) -> None:
        self._index = {name: index for index, name in enumerate(order)}
        self.segments = lay_out(self.parameters, order)
        self._plan = make_plan(self.strategy.packing, self.segments) if self.strategy.rank_invariant else ()

    # ---- communication thread

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001  reported by every later call of the main thread
            self._error = error
            self._idle.set()
            for event in self._reduced.values():
                event.set()

    def _serve(self) -> None:
        self._flights: dict[int, _Flight] = {}
        timeout_s: float | None = None
        while True:
            try:
                event = self._events.get(timeout=timeout_s)
            except Empty:
                event = ("tick",)
            match event:
                case ("stop",):
                    return
                case ("begin", step):
                    self._begin(step)
                case ("ready", index, _):
                    self._dispatch.ready(index)
                case ("link", error):
                    self._take_link(error)
                case ("done", lane, answer):
                    self._advance(lane, answer)
            timeout_s = self._send_what_may_go()

    def _begin(self, step: int) -> None:
        self._now_step = step
        self._num_sent = 0
        self._left = {segment.name: segment.numel for segment in self.segments}
        self._dispatch: StaticDispatch | Negotiation
        if self.strategy.rank_invariant:
            self._dispatch = StaticDispatch(self._plan)
        else:
            self._dispatch = Negotiation(self.strategy, self.segments, self.transport, self.traffic, self._post)

    def _post(self, lane: int) -> Callable[[Payload | Exception], None]:
        return lambda answer: self._events.put(("done", lane, answer))

    def _send_what_may_go(self) -> float | None:
        """Start messages while a lane is free; the seconds after which to look again, if any."""
        if not hasattr(self, "_dispatch"):
            return None
        depth = self.strategy.ordering.depth
        while self._num_sent % depth not in self._flights:
            if not self._has_link and not self._ask_for_link():
                break
            message = self._dispatch.next()
            if message is None:
                break
            self._launch(message, self._num_sent % depth)
            self._num_sent += 1
        if isinstance(self._dispatch, Negotiation):
            flying = [flight.message for flight in self._flights.values()]
            return self._dispatch.cycle(flying, perf_counter())
        return None

    def _ask_for_link(self) -> bool:
        """Ask for the link once a message could go; false, since it comes later, if at all."""
        if self._link is not None and not self._asked_link and self._dispatch.has_next:
            self._asked_link = True
            self._link.request(lambda error: self._events.put(("link", error)))
        return False

    def _take_link(self, error: Exception | None) -> None:
        if error is not None:
            raise error
        self._has_link = True

    def _give_link_back(self) -> None:
        if self._link is not None:
            self._link.release()
            self._has_link = self._asked_link = False

    def _launch(self, message: Message, lane: int) -> None:
        flat = flatten_gradients(message, self.parameters, self._pool, scale=1.0 / self.transport.world)
        rank, world = self.transport.rank, self.transport.world
        ctx = Context(rank, world, self._now_step, message, self._generator)
        run = reduce_message(self.strategy.compression, self.strategy.exchange, flat, self.states, ctx)
        self._flights[lane] = _Flight(message, run, flat, lane, perf_counter())
        self._step_flight(self._flights[lane], None)
        self.traffic.num_messages += 1

    def _advance(self, lane: int, answer: Payload | Exception) -> None:
        if isinstance(answer, Exception):
            raise answer
        if lane == CONTROL:
            assert isinstance(self._dispatch, Negotiation)
            self._dispatch.answered(answer)
        else:
            self._step_flight(self._flights[lane], answer)

    def _step_flight(self, flight: _Flight, answer: Payload | None) -> None:
        """Drive one message's generator to its next primitive, or to its end."""
        start_s = perf_counter()
        try:
            tagged = next(flight.run) if answer is None else flight.run.send(answer)
        except StopIteration as end:
            self._land(flight, end.value)
        else:
            self.traffic.count(tagged.tag, bytes_sent(tagged.primitive, self.transport.world))
            self.transport.start(tagged.primitive, flight.lane, self._post(flight.lane))
        self.recorder.add("codec", "codec", start_s, perf_counter())

    def _land(self, flight: _Flight, reduced: Reduced) -> None:
        """A message is complete: hand its gradients back."""
        scatter_gradients(flight.message, reduced.value, self.parameters)
        self._pool.give_back(flight.flat)
        del self._flights[flight.lane]
        name = f"message {flight.message.index}"
        self.recorder.add(f"lane {flight.lane}", name, flight.started_s, perf_counter())
        for segment in flight.message.segments:
            self._left[segment.name] -= segment.numel
            if self._left[segment.name] == 0:
                del self._left[segment.name]
                self._reduced[segment.name].set()
        if not self._left:
            self._give_link_back()
            self._idle.set()
