"""Lockstep: P virtual ranks of one job in one process, exact, without network, threads or clock.

Each rank has a model replica (its BatchNorm statistics stay its own) and its own compressor
states. Plug-ins, order agreement, message generators and update are those of the engine; only
the transport differs: a primitive is carried out when every rank has asked for it, and sums go
in order of rank. What is left is the algorithm alone, at real size on one device.

    ranks = Lockstep(replicas(model, 4), parse_strategy("topk+error-feedback"), seed=1)
    for batches in ...:  # one a rank
        losses = ranks.step(lambda rank, model: workload.loss(model, batches[rank]))

Gradients may become ready in any order, another one on every rank: pass `arrivals`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from baselines.api import AllReduce, Context, Message, NeedsWorld, Payload, Reduced, Serve, UpdatePoint
from baselines.strategy import Strategy
from harness.engine.buffers import BufferPool, flatten_gradients, scatter_gradients
from harness.engine.checkpoint import CheckpointError, Saved, restore_states, saved_states
from harness.engine.dispatch import DEFAULT_CYCLE_S, PlanError, StaticDispatch, make_plan
from harness.engine.layout import lay_out, rank_generator, trainable_parameters
from harness.engine.negotiate import Negotiation
from harness.engine.reduction import MessageRun, Tagged, reduce_message
from harness.engine.shards import Adopt, Shards
from harness.engine.traffic import Traffic
from harness.lockstep.collectives import DisagreementError, Room, perform
from harness.precision import Guard, LossScale

ARRIVAL_INTERVAL_S = 1e-4  # on the negotiation's virtual clock: a cycle of 1 ms meets some ten arrivals
MAX_IDLE_CYCLES = 1_000

Loss = Callable[[int, nn.Module], Tensor]
Arrivals = Sequence[tuple[int, str]]


def replicas(model: nn.Module, world: int) -> list[nn.Module]:
    """`world` models with the weights and buffers of `model`, which is the first of them."""
    return [model, *(copy.deepcopy(model) for _ in range(world - 1))]


class Lockstep:
    """Trains `models`, one a virtual rank, as `strategy` decides.

    `traffic_of` counts what each rank sends, as the engine does, and `traffic` is rank 0's. A parameter without a
    gradient counts as zero. Ranks after the first `num_workers` only serve: their models stay as they are. With a
    `loss_scale` losses are scaled as in `harness/precision.py`, and a step that overflows on any rank is skipped.
    Raises: ValueError if the models' weights differ, or their number does not suit the exchange.
    """

    def __init__(
        self, models: Sequence[nn.Module], strategy: Strategy, *, seed: int = 0, loss_scale: LossScale | None = None
    ) -> None:
        self.models, self.strategy = tuple(models), strategy
        if isinstance(strategy.exchange, NeedsWorld) and (reason := strategy.exchange.why_unfit(len(models))):
            raise ValueError(f"{strategy.text}: {reason}")
        self.num_workers = strategy.num_workers(len(models))
        self.traffic_of = tuple(Traffic() for _ in models)
        self.parameters = [trainable_parameters(model) for model in models]
        _check_equal(self.parameters)
        self.states = [{n: strategy.compression.init(n, p) for n, p in own.items()} for own in self.parameters]
        self.segments = lay_out(self.parameters[0], list(self.parameters[0]))
        self._optimizers = [self._build_optimizers(rank) for rank in range(self.num_workers)]
        self.shards = [Shards(own, strategy.optimizer) for own in self.parameters]
        self._generators = [rank_generator(seed, rank) for rank in range(self.world)]
        self.loss_scale = loss_scale
        if loss_scale is not None and _updates_early(strategy):
            raise ValueError(f"{strategy.text}: a step that overflows cannot be skipped, parts of it are applied early")
        self._guards = [Guard(states, strategy.compression.lossy) for states in self.states if loss_scale is not None]
        self._pools = [BufferPool() for _ in models]
        self._num_steps, self._now_s, self._look_again_s = 0, 0.0, DEFAULT_CYCLE_S

    @property
    def world(self) -> int:
        """P, the number of virtual ranks."""
        return len(self.models)

    @property
    def traffic(self) -> Traffic:
        """What rank 0 sent."""
        return self.traffic_of[0]

    def step(self, loss: Loss, *, arrivals: Arrivals | None = None) -> list[Tensor]:
        """Forward, backward, exchange and update on every rank that trains; their losses in order of rank.

        `loss(rank, model)` is called once each. `arrivals` are the events (rank, parameter name)
        of gradients becoming ready, each once; by default as autograd made them, ranks in turn.
        Raises: DisagreementError or PlanError for a defect of a plug-in.
        """
        losses, orders = zip(*(self._backward(rank, loss) for rank in range(self.num_workers)), strict=True)
        orders += tuple(self._nothing_of_its_own(rank) for rank in range(self.num_workers, self.world))
        if arrivals is None:
            arrivals = [(rank, name) for names in zip(*orders, strict=True) for rank, name in enumerate(names)]
        self._exchange(arrivals)
        if self._num_steps == 0 and not self.strategy.updates_on_servers:
            # from now on in the order seen on rank 0, as in the engine; servers know their part of each message
            self.segments = lay_out(self.parameters[0], [name for rank, name in arrivals if rank == 0])
        self._num_steps += 1
        return list(losses)

    def state_dict(self) -> Saved:
        """All that the next step depends on, the data apart: tensors, numbers and texts, for `torch.save`."""
        return {
            "num_steps": self._num_steps,
            "order": [segment.name for segment in self.segments],
            "clock_s": [self._now_s, self._look_again_s],
            "loss_scale": None if self.loss_scale is None else list(dataclasses.astuple(self.loss_scale)),
            "models": [copy.deepcopy(model.state_dict()) for model in self.models],
            "optimizers": [
                {name: copy.deepcopy(own.state_dict()) for name, own in optimizers.items()}
                for optimizers in self._optimizers
            ],
            "compression": [saved_states(states) for states in self.states],
            "shards": [shards.state_dict() for shards in self.shards],
            "generators": [generator.get_state() for generator in self._generators],
        }

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave, bit for bit; packing and ordering may be others.

        Raises: CheckpointError if ranks, parameters, the compression or the update point differ.
        """
        if len(saved["models"]) != self.world or len(saved["optimizers"]) != self.num_workers:
            raise CheckpointError(
                f"the checkpoint is of {len(saved['models'])} ranks, {len(saved['optimizers'])} of which train; "
                f"here are {self.world} and {self.num_workers}"
            )
        if [own.keys() for own in self._optimizers] != [kept.keys() for kept in saved["optimizers"]]:
            raise CheckpointError(f"{self.strategy.text}: the checkpoint is of another update point; use that one")
        for states, kept, parameters in zip(self.states, saved["compression"], self.parameters, strict=True):
            restore_states(states, kept, parameters)
        for model, kept in zip(self.models, saved["models"], strict=True):
            model.load_state_dict(kept)
        for optimizers, kept in zip(self._optimizers, saved["optimizers"], strict=True):
            for name, optimizer in optimizers.items():
                optimizer.load_state_dict(kept[name])
        for shards, kept in zip(self.shards, saved["shards"], strict=True):
            shards.load_state_dict(kept)
        for generator, kept in zip(self._generators, saved["generators"], strict=True):
            generator.set_state(kept)
        self.segments = lay_out(self.parameters[0], saved["order"])
        self.loss_scale = None if saved["loss_scale"] is None else LossScale(*saved["loss_scale"])
        self._num_steps, (self._now_s, self._look_again_s) = saved["num_steps"], saved["clock_s"]

    def _build_optimizers(self, rank: int) -> dict[str, torch.optim.Optimizer]:
        """One a parameter for AT_PRE_HOOK; else a single one, under the empty name."""
        build = Adopt().build if self.strategy.updates_on_servers else self.strategy.optimizer.build
        if self.strategy.update_point is UpdatePoint.AT_PRE_HOOK:
            return {name: build([(name, parameter)]) for name, parameter in self.parameters[rank].items()}
        return {"": build(self.models[rank].named_parameters())}

    def _backward(self, rank: int, loss: Loss) -> tuple[Tensor, list[str]]:
        """The loss, and the names in the order in which gradients came, absent ones last."""
        parameters = self.parameters[rank]
        order: dict[str, None] = {}
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_note, order, name))
            for name, parameter in parameters.items()
        ]
        value = loss(rank, self.models[rank])
        (value if self.loss_scale is None else value * self.loss_scale.scale).backward()
        for hook in hooks:
            hook.remove()
        for name, parameter in parameters.items():
            if name not in order:
                parameter.grad = torch.zeros_like(parameter)
                order[name] = None
        return value.detach(), list(order)

    def _nothing_of_its_own(self, rank: int) -> list[str]:
        """What a rank that only serves brings: zeros, all ready."""
        for parameter in self.parameters[rank].values():
            parameter.grad = torch.zeros_like(parameter)
        return list(self.parameters[rank])

    def _exchange(self, arrivals: Arrivals) -> None:
        missing = {segment.name: segment.numel for segment in self.segments}
        for guard in self._guards:
            guard.begin()
        for message in self._messages(arrivals):
            self._reduce(message)
            for segment in message.segments:
                missing[segment.name] -= segment.numel
                if missing[segment.name] == 0:
                    del missing[segment.name]
                    self._apply(segment.name)
        if missing:
            raise PlanError(f"{self.strategy.text}: never sent as a whole: {', '.join(missing)}")
        if not self._skips():
            self._apply("")

    def _skips(self) -> bool:
        """Whether the step overflowed on any rank; all ranks then forget it."""
        if self.loss_scale is None:
            return False
        overflow = any(guard.overflowed() for guard in self._guards)
        if self._guards[0].must_agree:
            for traffic in self.traffic_of:
                traffic.send("control", AllReduce(torch.zeros(1)), self.world)
        self.loss_scale = self.loss_scale.after(overflow=overflow)
        if overflow:
            for guard, model in zip(self._guards, self.models, strict=True):
                guard.undo()
                model.zero_grad()
        return overflow

    def _apply(self, name: str) -> None:
        """Step the optimizers that wait for the parameter `name`, or for the whole model."""
        for optimizers in self._optimizers:
            if name in optimizers:
                optimizers[name].step()
                optimizers[name].zero_grad()

    def _messages(self, arrivals: Arrivals) -> Iterator[Message]:
        """The messages of a step in the order on which all ranks agree, as gradients arrive."""
        index = {segment.name: segment.index for segment in self.segments}
        events = [(rank, index[name]) for rank, name in arrivals]
        return self._planned(events) if self.strategy.rank_invariant else self._negotiated(events)

    def _planned(self, events: Sequence[tuple[int, int]]) -> Iterator[Message]:
        plan = make_plan(self.strategy.packing, self.segments)
        dispatches = [StaticDispatch(plan) for _ in self.models]
        sent: list[deque[Message]] = [deque() for _ in self.models]
        for rank, index in events:
            dispatches[rank].ready(index)
            while message := dispatches[rank].next():
                sent[rank].append(message)
            while all(sent):
                yield _agreed([queue.popleft() for queue in sent])

    def _negotiated(self, events: Sequence[tuple[int, int]]) -> Iterator[Message]:
        sides = self._negotiations()
        for rank, index in events:
            sides[rank].ready(index)
            self._now_s += ARRIVAL_INTERVAL_S
            yield from _cycle(sides, self._now_s)[0]
        num_idle = 0
        while not sides[0].all_decided:
            decided, pause_s = _cycle(sides, self._now_s)
            yield from decided
            self._now_s += pause_s
            num_idle = 0 if decided else num_idle + 1
            if num_idle > MAX_IDLE_CYCLES:
                raise PlanError(f"{self.strategy.text}: all gradients are ready and no message is made")
        self._look_again_s = sides[0].look_again_s

    def _negotiations(self) -> list[Negotiation]:
        """Every rank's side of one step; answers come at once, when all sides have asked."""
        room, sides = Room(self.world), list[Negotiation]()
        for rank in range(self.world):
            side = Negotiation(
                self.strategy,
                self.segments,
                room.seat(rank),
                self.traffic_of[rank],
                partial(_answer, sides, rank),
                self._look_again_s,
                clock=lambda: self._now_s,
            )
            sides.append(side)
        return sides

    def _reduce(self, message: Message) -> None:
        """Drive one message's generators on all ranks together, and hand the gradients back."""
        for traffic in self.traffic_of:
            traffic.num_messages += 1
        scale = 1.0 / self.num_workers / (1.0 if self.loss_scale is None else self.loss_scale.scale)
        flats = [
            flatten_gradients(message, own, pool, scale=scale)
            for own, pool in zip(self.parameters, self._pools, strict=True)
        ]
        for guard, flat in zip(self._guards, flats, strict=False):
            guard.outgoing(flat)
        runs = [self._run(rank, message, flat) for rank, flat in enumerate(flats)]
        outcomes = [_advance(run, None) for run in runs]
        while asked := _asked(outcomes):
            answers = self._perform(message, asked)
            outcomes = [_advance(run, answer) for run, answer in zip(runs, answers, strict=True)]
        for rank, reduced in enumerate(outcomes):
            assert isinstance(reduced, Reduced)
            if self._guards:
                self._guards[rank].incoming(reduced.value)
            scatter_gradients(message, reduced.value, self.parameters[rank])
            self._pools[rank].give_back(flats[rank])

    def _perform(self, message: Message, asked: Sequence[Tagged]) -> list[Payload]:
        primitives = [tagged.primitive for tagged in asked]
        if all(isinstance(primitive, Serve) for primitive in primitives):
            served = [(rank, p) for rank, p in enumerate(primitives) if isinstance(p, Serve)]
            return [(self.shards[rank].step(message, serve, self._num_steps),) for rank, serve in served]
        for traffic, tagged in zip(self.traffic_of, asked, strict=True):
            traffic.send(tagged.tag, tagged.primitive, self.world)
        return perform(primitives)

    def _run(self, rank: int, message: Message, flat: Tensor) -> MessageRun:
        ctx = Context(rank, self.world, self._num_steps, message, self._generators[rank], num_workers=self.num_workers)
        return reduce_message(self.strategy.compression, self.strategy.exchange, flat, self.states[rank], ctx)


def _note(order: dict[str, None], name: str, _: Tensor) -> None:
    order[name] = None


def _updates_early(strategy: Strategy) -> bool:
    return strategy.update_point is UpdatePoint.AT_PRE_HOOK or strategy.updates_on_servers


def _check_equal(parameters: Sequence[dict[str, nn.Parameter]]) -> None:
    for rank, own in enumerate(parameters):
        first = parameters[0]
        if own.keys() != first.keys() or not all(torch.equal(own[name], first[name]) for name in first):
            raise ValueError(f"the model of rank {rank} differs from rank 0's; start from replicas(model, world)")


def _answer(sides: Sequence[Negotiation], rank: int, answer: Payload | Exception) -> None:
    assert not isinstance(answer, Exception)
    sides[rank].answered(answer)


def _cycle(sides: Sequence[Negotiation], now_s: float) -> tuple[list[Message], float]:
    """Let every side take part in a cycle: the messages decided by it, and seconds until the next."""
    pause_s = max(side.cycle((), now_s) or 0.0 for side in sides)
    decided = []
    while any(messages := [side.next() for side in sides]):
        decided.append(_agreed(messages))
    return decided, pause_s


def _agreed(messages: Sequence[Message | None]) -> Message:
    first = messages[0]
    if first is None or any(message != first for message in messages):
        raise DisagreementError(f"ranks send different messages: {messages}")
    return first


def _advance(run: MessageRun, answer: Payload | None) -> Tagged | Reduced:
    """The next primitive of one rank's message, or its result."""
    try:
        return next(run) if answer is None else run.send(answer)
    except StopIteration as end:
        reduced: Reduced = end.value
        return reduced


def _asked(outcomes: Sequence[Tagged | Reduced]) -> list[Tagged]:
    """What all ranks ask for; empty when all have their result."""
    tagged = [outcome for outcome in outcomes if isinstance(outcome, Tagged)]
    if tagged and (len(tagged) < len(outcomes) or len({t.tag for t in tagged}) > 1):
        raise DisagreementError(f"some ranks are done and others are not, or their tags differ: {outcomes}")
    return tagged
