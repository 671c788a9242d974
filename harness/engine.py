"""The engine: reduces gradients over ranks while training goes on.

The main thread's side. Autograd's hooks tell the step's dispatch which gradients are ready, and
wake the communication thread only when that lets a message go. `wait` (all messages) and
`wait_for` (one parameter, for AT_PRE_HOOK) block until they have landed.

Gradients are divided by the number of ranks before they are compressed, as DDP does. A
parameter without a gradient in a step counts as zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from queue import SimpleQueue
from time import perf_counter

import torch
from torch import Tensor, nn

from baselines.api import Broadcast, Payload, State
from baselines.strategy import Strategy
from harness.communication import Communication, Step
from harness.dispatch import DEFAULT_CYCLE_S, StaticDispatch, make_plan
from harness.layout import lay_out, rank_generator, trainable_parameters
from harness.link_turns import LinkTurns
from harness.negotiate import Negotiation
from harness.streams import streams_for
from harness.trace import Recorder
from harness.traffic import Traffic
from harness.transport import CONTROL, Transport


class EngineError(RuntimeError):
    """Communication failed; the message says at what, the cause is attached."""


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
        self.parameters = trainable_parameters(model)
        self.states: dict[str, State] = {n: strategy.compression.init(n, p) for n, p in self.parameters.items()}
        self._streams = streams_for(self.parameters, strategy.ordering.depth)
        self._communication = Communication(
            strategy,
            self.parameters,
            self.states,
            transport,
            recorder=recorder,
            generator=rank_generator(seed, transport.rank),
            streams=self._streams,
            link=link,
        )
        self._muted = False
        self._step: Step | None = None
        self._seen: list[str] = []
        self._lay_out(list(self.parameters))
        self._hooks = [p.register_post_accumulate_grad_hook(self._hook(n)) for n, p in self.parameters.items()]

    @property
    def traffic(self) -> Traffic:
        """What was sent so far."""
        return self._communication.traffic

    def begin_step(self) -> None:
        """Announce a step; the gradients of its backward will be reduced."""
        self._check()
        self._seen = []
        number = 0 if self._step is None else self._step.number + 1
        left = {segment.name: segment.numel for segment in self.segments}
        self._step = Step(number, self._new_dispatch(), left, [0] * self.strategy.ordering.depth)
        self._communication.begin(self._step)

    def end_backward(self) -> None:
        """Backward has ended: parameters that got no gradient are sent as zeros."""
        if len(self._seen) < len(self.parameters):
            seen = set(self._seen)
            for name, parameter in self.parameters.items():
                if name not in seen:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    self._announce(name)

    def wait(self) -> None:
        """Block until every message of the step has landed.

        Raises: EngineError if communication failed.
        """
        step = self._current_step()
        self._block_until(lambda: len(step.landed) == len(self.parameters))
        self._streams.wait_landed(self.parameters)
        if step.number == 0 and self._seen:
            self._agree_on_ready_order()

    def wait_for(self, name: str) -> None:
        """Block until the gradient of one parameter is reduced. Raises: EngineError."""
        step = self._current_step()
        self._block_until(lambda: name in step.landed)
        self._streams.wait_landed((name,))

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
        self._communication.stop()

    def _hook(self, name: str) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if not self._muted:
                self._announce(name)

        return ready

    def _announce(self, name: str) -> None:
        self._seen.append(name)
        self._streams.mark_ready(name)
        if self._current_step().dispatch.ready(self._index[name]):
            self._communication.wake()

    def _new_dispatch(self) -> StaticDispatch | Negotiation:
        if self.strategy.rank_invariant:
            return StaticDispatch(self._plan)
        before = self._step.dispatch if self._step is not None else None
        look_again_s = before.look_again_s if isinstance(before, Negotiation) else DEFAULT_CYCLE_S
        receiver = self._communication.receiver(CONTROL)
        return Negotiation(self.strategy, self.segments, self.transport, self.traffic, receiver, look_again_s)

    def _current_step(self) -> Step:
        if self._step is None:
            raise EngineError("no step has begun; call begin_step before backward")
        return self._step

    def _block_until(self, done: Callable[[], bool]) -> None:
        start_s = perf_counter()
        with self._communication.changed:
            self._communication.changed.wait_for(lambda: done() or self._communication.error is not None)
        self.recorder.add("loop", "exposed", start_s, perf_counter())
        self._check()

    def _check(self) -> None:
        error = self._communication.error
        if error is not None:
            raise EngineError(f"communication failed: {error}") from error

    def _agree_on_ready_order(self) -> None:
        """After the first step the layout follows the order seen on rank 0, as DDP's rebuild does."""
        names = list(self.parameters)
        order = torch.tensor([names.index(name) for name in self._seen], dtype=torch.int32)
        done: SimpleQueue[Payload | Exception] = SimpleQueue()
        self.transport.start(Broadcast(order), CONTROL, done.put)
        answer = done.get()
        if isinstance(answer, Exception):
            raise EngineError(f"communication failed: {answer}") from answer
        self._seen = []
        self._lay_out([names[position] for position in order.tolist()])

    def _lay_out(self, order: Sequence[str]) -> None:
        self._index = {name: index for index, name in enumerate(order)}
        self.segments = lay_out(self.parameters, order)
        self._plan = make_plan(self.strategy.packing, self.segments) if self.strategy.rank_invariant else ()
