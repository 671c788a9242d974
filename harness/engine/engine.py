"""The engine: reduces gradients over ranks while training goes on.

The main thread's side. Autograd's hooks say which gradients are ready, and what that lets go goes from the hook
(`harness.engine.communication`). `wait` (all messages) and `wait_for` (one parameter, for AT_PRE_HOOK) block until
they have landed.

Gradients are divided by the number of ranks before they are compressed, as DDP does, and by the loss
scale of mixed precision (`harness/precision.py`). A parameter without a gradient in a step counts as zero.

A gradient may arrive in parts: autograd runs a parameter's hook once for each reentrant checkpoint that uses it, and
once for each backward of a step. Such a gradient is sent when backward ends. Which ones those are is seen in the first
step, whose gradients all wait for its end. A part that arrives after its message has left is an error.

A strategy that plans with measured costs, or is tuned, is replaced at step boundaries, when nothing is
under way (`harness/engine/adaptation.py`); packing and ordering may change there, lanes, compression and exchange do
not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from baselines.api import AllReduce, Broadcast, Payload, State
from baselines.strategy import Strategy
from harness.engine.adaptation import Adaptation, Asked, adapts
from harness.engine.checkpoint import Saved, restore_states, saved_states
from harness.engine.communication import Communication
from harness.engine.core import Core
from harness.engine.dispatch import StaticDispatch, make_plan, needs_of
from harness.engine.layer_graph import ModuleGraph
from harness.engine.layout import SPARSE, GradientError, fitting_parameters, lay_out, rank_generator
from harness.engine.link_turns import LinkTurns
from harness.engine.messages import RankMessages
from harness.engine.negotiate import Negotiation
from harness.engine.reduction import Reduces, Tagged
from harness.engine.straight import NUM_QUEUED, StraightSums
from harness.engine.streams import streams_for
from harness.engine.traffic import PROBE, Traffic
from harness.engine.transport import CONTROL, QueuesSums, Transport
from harness.precision import Guard
from harness.trace import Recorder
from results.record import Adapted

NO_STEP = "no step has begun; call begin_step before backward, and mute the engine for a backward of its own"


class EngineError(RuntimeError):
    """Communication failed; the message says at what, the cause is attached."""


class Engine:
    """Reduces the gradients of `model` over the ranks of `transport`, as `strategy` decides; `compressor` does what the
    strategy's does and takes its time for it.

    Raises: ValueError for `link` turns beside a transport in which sums queue up, GradientError for parameters that a
    plug-in does not take.
    """

    def __init__(
        self,
        model: nn.Module,
        strategy: Strategy,
        transport: Transport,
        *,
        recorder: Recorder,
        seed: int = 0,
        link: LinkTurns | None = None,
        scales_loss: bool = False,
        compressor: Reduces | None = None,
    ) -> None:
        self.strategy, self.transport, self.recorder, self._link = strategy, transport, recorder, link
        self.parameters = fitting_parameters(model, strategy.takes)
        self.states: dict[str, State] = {n: strategy.compression.init(n, p) for n, p in self.parameters.items()}
        self._guard = Guard(self.states, strategy.compression.lossy) if scales_loss else None
        self._generator = rank_generator(seed, transport.rank)
        self._num_before = 0  # steps of the run that a checkpoint goes on from
        self._overflowed: bool | None = None  # of the present step, None until ranks agree
        straight = _straight(transport, shares_link=link is not None)
        self._streams = streams_for(self.parameters, strategy.ordering.depth, from_hooks=straight is not None)
        self._messages = RankMessages(
            strategy=strategy,
            parameters=self.parameters,
            states=self.states,
            rank=transport.rank,
            world=transport.world,
            generator=self._generator,
            compressor=compressor or strategy.compression,
            guard=self._guard,
            streams=self._streams,
            recorder=recorder,
        )
        self._core = Core(
            opens=self._messages.open,
            world=transport.world,
            num_lanes=strategy.ordering.depth if straight is None else NUM_QUEUED,
            traffic=Traffic(),
            clock=perf_counter,
            shares_link=link is not None,
            one_by_one=strategy.sums_one_by_one,
        )
        self._communication = self._carrier(straight)
        self._muted = False
        self._step: int | None = None  # number of the present or last one
        self._in_backward = False
        self._seen: dict[str, None] = {}  # parameters whose gradient is announced, in order
        self.unused: dict[str, None] = {}  # those that a backward on this rank left without a gradient
        self._late = set(self.parameters)  # announced when backward ends: not yet seen to arrive in one part
        self._parts: dict[str, int] = {}  # of the gradients of late parameters so far, the last arrival last
        self._lay_out(list(self.parameters))
        # Behind accumulation, so a parameter that is used twice is announced once, with its whole gradient.
        self._hooks = [
            p.register_post_accumulate_grad_hook(partial(self._ready, n)) for n, p in self.parameters.items()
        ]
        self._waited_s = 0.0
        self._adaptation = self._new_adaptation(model) if adapts(strategy) else None
        self._told = self._told_of_gradients()

    def _carrier(self, straight: QueuesSums | None) -> Communication | StraightSums:
        """Who carries out what the core says: plain sums straight from the hooks, all else by lanes."""
        if straight is not None:
            return StraightSums(self._core, straight, recorder=self.recorder, streams=self._streams)
        return Communication(
            self._core,
            self.transport,
            recorder=self.recorder,
            streams=self._streams,
            link=self._link,
            looks_again=not self.strategy.rank_invariant,
            compresses=not self.strategy.sends_plain_sums,
        )

    @property
    def traffic(self) -> Traffic:
        """What was sent so far."""
        return self._core.traffic

    @property
    def adapted(self) -> tuple[Adapted, ...]:
        """How the strategy was changed so far."""
        return self._adaptation.report() if self._adaptation is not None else ()

    @property
    def overflowed(self) -> bool:
        """Whether the step that was waited for is to be skipped, on all ranks: some scaled gradient was not finite."""
        return bool(self._overflowed)

    def begin_step(self, loss_scale: float = 1.0) -> None:
        """Announce a step; the gradients of its backward, of the loss times `loss_scale`, will be reduced.

        Raises: EngineError if communication failed, or the last step was not waited for.
        """
        self._check()
        if self._step is not None and len(self._communication.landed) < len(self.parameters):
            raise EngineError("messages of the last step are under way; call wait before the next step")
        self._adapt()
        self._seen, self._in_backward = {}, True
        self._step = self._num_before if self._step is None else self._step + 1
        self._overflowed = None
        self._messages.begin(self._step, self.segments, loss_scale)
        self._communication.begin(self._new_dispatch(), self._numels)
        if self._adaptation is not None:
            self._adaptation.layers.begin_backward()

    def end_backward(self) -> None:
        """Backward has ended: late gradients are whole, and parameters that got none are sent as zeros."""
        for name in self._parts:
            self._announce(name)
        if len(self._seen) < len(self.parameters):
            if self._seen:  # else this rank trains nothing
                self.unused |= dict.fromkeys(name for name in self.parameters if name not in self._seen)
            for name, parameter in self.parameters.items():
                if name not in self._seen:
                    # Other ranks may have a gradient here. Leaving it out would leave them waiting.
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    self._announce(name)
        self._late = {name for name in self._late if self._parts.get(name) != 1}
        self._parts, self._in_backward = {}, False

    def wait(self) -> None:
        """Block until every message of the step has landed.

        Raises: EngineError if communication failed.
        """
        step = self._current_step()
        self._block_until(lambda: len(self._communication.landed) == len(self.parameters))
        self._streams.wait_landed(self.parameters)
        if self._guard is not None and self._overflowed is None:
            self._overflowed = self._agree_on_overflow(self._guard)
        if step == 0 and self._seen and not self.strategy.updates_on_servers:  # they keep parts of messages
            self._agree_on_ready_order()

    def wait_for(self, name: str) -> bool:
        """Block until the gradient of one parameter is reduced; whether it was not yet. Raises: EngineError."""
        self._current_step()
        had_to_wait = name not in self._communication.landed
        self._block_until(lambda: name in self._communication.landed)
        self._streams.wait_landed((name,))
        return had_to_wait

    def mute(self, muted: bool) -> None:
        """While muted, gradients stay local: for measuring compute alone."""
        self._muted = muted

    def exchange_once(self) -> None:
        """Send the present gradients once more, all ready at once: for measuring the link alone, and for a rank that
        only serves. A step like any other for what ranks agree on, but no layer times are taken from it."""
        self.begin_step()
        self.end_backward()
        self.wait()
        if self._adaptation is not None:
            self._adaptation.layers.end_step(keep=False)

    def state_dict(self) -> Saved:
        """This rank's compressor states and what else the next step depends on, model and optimizer apart.

        Call it between two steps. Every rank has its own.
        """
        return {
            "num_steps": self._num_before if self._step is None else self._step + 1,
            "order": [segment.name for segment in self.segments],
            "compression": saved_states(self.states),
            "shards": self._messages.shards.state_dict(),
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave on this rank, before the first step.

        Raises: EngineError after a step, CheckpointError for other parameters or another compression.
        """
        if self._step is not None:
            raise EngineError("a step has begun; load a checkpoint before the first one")
        restore_states(self.states, saved["compression"], self.parameters)
        self._messages.shards.load_state_dict(saved["shards"])
        self._generator.set_state(saved["generator"])
        self._num_before = saved["num_steps"]
        self._lay_out(saved["order"])

    def close(self) -> None:
        """Stop the communication thread and remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._communication.stop()
        self.transport.close()
        if self._link is not None:
            self._link.leave()

    def _ready(self, name: str, parameter: Tensor) -> None:
        """Autograd's hook: what it takes holds backward up, once per parameter."""
        if self._muted:
            return
        if parameter.grad is not None and parameter.grad.is_sparse:  # of a function; modules were looked at before
            raise GradientError(SPARSE.format(name))
        if not self._in_backward:
            raise EngineError(f"{name} got a gradient and {NO_STEP}")
        if name in self._late:
            self._parts[name] = self._parts.pop(name, 0) + 1
        else:
            self._announce(name)

    def _announce(self, name: str) -> None:
        if name in self._seen:
            raise EngineError(
                f"{name}: a part of its gradient arrived after its message had left, and in the first step it came in "
                "one part; use torch.utils.checkpoint with use_reentrant=False, and call backward once a step"
            )
        self._seen[name] = None
        for tell in self._told:
            tell(name)
        self._communication.ready(self._index[name])

    def _told_of_gradients(self) -> tuple[Callable[[str], None], ...]:
        """Who wants to know, in the hook, that the gradient of a parameter is ready."""
        streams = (self._streams.mark_ready,) if self._streams.marks_gradients else ()
        return streams if self._adaptation is None else (*streams, self._adaptation.layers.ready)

    def _new_dispatch(self) -> StaticDispatch | Negotiation:
        if self.strategy.rank_invariant:
            return StaticDispatch(self._plan, self._needs)
        before = self._core.dispatch
        return Negotiation(
            self.strategy,
            self.segments,
            self.transport.rank,
            self.transport.world,
            before=before if isinstance(before, Negotiation) else None,
        )

    def _current_step(self) -> int:
        if self._step is None:
            raise EngineError(NO_STEP)
        return self._step

    def _block_until(self, done: Callable[[], bool]) -> None:
        start_s = perf_counter()
        self._communication.wait_until(done)
        end_s = perf_counter()
        self._waited_s += end_s - start_s
        self.recorder.add("loop", "exposed", start_s, end_s)
        self._check()

    def _check(self) -> None:
        error = self._communication.error
        if error is not None:
            raise EngineError(f"communication failed: {error}") from error

    def _agree_on_ready_order(self) -> None:
        """After the first step the layout follows the order seen on rank 0, as DDP's rebuild does."""
        # Positions and not names: tensors travel, texts do not.
        names = list(self.parameters)
        order = torch.tensor([names.index(name) for name in self._seen], dtype=torch.int32)
        self._carry_out(((CONTROL, Broadcast(order)),), "control")
        self._seen = {}
        self._lay_out([names[position] for position in order.tolist()])

    def _agree_on_overflow(self, guard: Guard) -> bool:
        """Whether any rank saw a gradient that was not finite; if so, compressors forget the step."""
        overflowed = guard.overflowed()
        if guard.must_agree:
            votes = torch.tensor([float(overflowed)])
            self._carry_out(((CONTROL, AllReduce(votes)),), "control")
            overflowed = bool(votes > 0)
        if overflowed:
            guard.undo()
        return overflowed

    def _carry_out(self, asked: Asked, tag: str) -> tuple[Payload, ...]:
        """Primitives between two steps, when nothing else is under way; what is not control counts under `tag`."""
        landings: list[SimpleQueue[Payload | Exception]] = [SimpleQueue() for _ in asked]
        for (lane, primitive), landing in zip(asked, landings, strict=True):
            # Through the core, which counts the bytes: those between two steps would otherwise be sent for nothing.
            start = self._core.start(lane, Tagged(primitive, "control" if lane == CONTROL else tag))
            self.transport.start(start.real, lane, landing.put)
        answers = []
        for landing in landings:
            answer = landing.get()
            if isinstance(answer, Exception):
                raise EngineError(f"communication failed: {answer}") from answer
            answers.append(answer)
        return tuple(answers)

    def _new_adaptation(self, model: nn.Module) -> Adaptation:
        """With hooks that time layers, if their times are wanted."""
        adaptation = Adaptation(
            self.strategy,
            self.transport.rank,
            self.transport.world,
            device=next((parameter.device for parameter in self.parameters.values()), None),
            layer_clock=lambda: perf_counter() - self._waited_s,
            num_queued=self._core.num_lanes // self.strategy.ordering.depth,
        )
        # Hooks on every module slow forward, so they are there only where somebody wants the times.
        if not self.strategy.needs_costs:
            return adaptation
        layers, names = adaptation.layers, {id(parameter): name for name, parameter in self.parameters.items()}
        self._hooks.append(model.register_forward_pre_hook(lambda *_: layers.begin_forward()))
        for module in model.modules():
            # A module's own parameters: containers would claim those of their children, and earlier.
            own = [names[id(p)] for p in module.parameters(recurse=False) if id(p) in names]
            if own:
                self._hooks.append(module.register_forward_pre_hook(lambda *_, own=own: layers.begin_layer(own)))
        self._hooks.append(model.register_forward_hook(lambda *_: layers.end_forward()))
        adaptation.graph = self._watch_graph(model, names)
        return adaptation

    def _watch_graph(self, model: nn.Module, names: Mapping[int, str]) -> ModuleGraph:
        """What each layer needs, looked at in the first forward with gradients alone."""
        graph, hooks = ModuleGraph(names), list[RemovableHandle]()
        for module in model.modules():
            if own := [names[id(p)] for p in module.parameters(recurse=False) if id(p) in names]:
                look = partial(_look, graph, own)
                hooks.append(module.register_forward_hook(look))

        def end(*_: object) -> None:
            if graph.needs and torch.is_grad_enabled():
                graph.close()
                for hook in hooks:
                    hook.remove()

        hooks.append(model.register_forward_hook(end))
        self._hooks += hooks
        return graph

    def _adapt(self) -> None:
        """Ask for the strategy of the step to come, and carry out what that takes on all ranks."""
        if self._adaptation is None:
            return
        talk = self._adaptation.next_strategy(self.strategy, self.segments)
        try:
            asked = next(talk)
            while True:
                asked = talk.send(self._carry_out(asked, PROBE))
        except StopIteration as end:
            strategy: Strategy = end.value
        if strategy is not self.strategy:
            # Groups were made for so many lanes, and a new group would need all ranks at once.
            assert strategy.ordering.depth == self.strategy.ordering.depth, "lanes are made for one depth"
            self.strategy = strategy
            self._lay_out([segment.name for segment in self.segments])

    def _lay_out(self, order: Sequence[str]) -> None:
        self._index = {name: index for index, name in enumerate(order)}
        self.segments = lay_out(self.parameters, order)
        self._numels = {segment.name: segment.numel for segment in self.segments}
        self._plan = make_plan(self.strategy.packing, self.segments) if self.strategy.rank_invariant else ()
        self._needs = needs_of(self._plan)


def _look(graph: ModuleGraph, own: Sequence[str], _: nn.Module, __: object, output: object) -> None:
    if torch.is_grad_enabled():
        graph.layer(own, output)


def _straight(transport: Transport, *, shares_link: bool) -> QueuesSums | None:
    """`transport` if sums may queue up in it, as was decided when it was made."""
    if not (isinstance(transport, QueuesSums) and transport.queues_sums):
        return None
    if shares_link:
        # Turns hold a message back before it starts, which a sum in the library's queue cannot be.
        raise ValueError("jobs take turns on the link, so sums cannot queue up; make the transport with shares_link")
    return transport
