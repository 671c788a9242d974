"""Lockstep: P virtual ranks of one job in one process, exact, without network, threads or clock.

Each rank has a model replica (its BatchNorm statistics stay its own), its own compressor states and a core
(`harness.engine.core`) that decides as the engine's does; only the transport differs: a primitive is carried out when
every rank has asked for it, and sums go in order of rank. Each rank has one message under way at a time, whatever the
ordering's depth: so what a rank draws at random, it draws in the order of messages. What is left is the algorithm
alone, at real size on one device.

    ranks = Lockstep(replicas(model, 4), parse_strategy("topk+error-feedback"), seed=1)
    for batches in ...:  # one a rank
        losses = ranks.step(lambda rank, model: workload.loss(model, batches[rank]))

Gradients may become ready in any order, another one on every rank: pass `arrivals`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from baselines.api import AllReduce, Broadcast, NeedsWorld, Primitive, UpdatePoint
from baselines.strategy import Strategy
from harness.engine.checkpoint import CheckpointError, Saved, restore_states, saved_states
from harness.engine.core import Action, Core, Landed, LookAgain, Start
from harness.engine.dispatch import DEFAULT_CYCLE_S, PlanError, StaticDispatch, make_plan
from harness.engine.layout import SPARSE, GradientError, TrainedParameters, fitting_parameters, lay_out, rank_generator
from harness.engine.local_steps import LocalSteps
from harness.engine.messages import RankMessages
from harness.engine.negotiate import Negotiation
from harness.engine.reduction import Tagged
from harness.engine.shards import Adopt, Shards
from harness.engine.traffic import Traffic
from harness.engine.transport import CONTROL
from harness.lockstep.collectives import DisagreementError, Meetings
from harness.precision import Guard, LossScale

ARRIVAL_INTERVAL_S = 1e-4  # on the negotiation's virtual clock: a cycle of 1 ms meets some ten arrivals
MAX_IDLE_CYCLES = 1_000

Loss = Callable[[int, nn.Module], Tensor]
Arrivals = Sequence[tuple[int, str]]


def replicas(model: nn.Module, world: int) -> list[nn.Module]:
    """`world` models with the weights and buffers of `model`, which is the first of them.

    They share what its hooks refer to: build a network with weight normalisation or pruning once for each rank.
    """
    return [model, *(copy.deepcopy(model) for _ in range(world - 1))]


class Lockstep:
    """Trains `models`, one a virtual rank, as `strategy` decides.

    `traffic_of` counts what each rank sends, as the engine does, and `traffic` is rank 0's. A parameter without a
    gradient counts as zero. Ranks after the first `num_workers` only serve: their models stay as they are. With a
    `loss_scale` losses are scaled as in `harness/precision.py`, and a step that overflows on any rank is skipped.
    Raises: ValueError if the models' weights differ, or their number does not suit the exchange; GradientError for
    parameters that a plug-in does not take.
    """

    def __init__(
        self, models: Sequence[nn.Module], strategy: Strategy, *, seed: int = 0, loss_scale: LossScale | None = None
    ) -> None:
        self.models, self.strategy = tuple(models), strategy
        if isinstance(strategy.exchange, NeedsWorld) and (reason := strategy.exchange.why_unfit(len(models))):
            raise ValueError(f"{strategy.text}: {reason}")
        self.num_workers = strategy.num_workers(len(models))
        self.parameters = [fitting_parameters(model, strategy.takes) for model in models]
        _check_equal(self.parameters)
        self._trained = [TrainedParameters(model) for model in self.models]
        self.states = [{n: strategy.compression.init(n, p) for n, p in own.items()} for own in self.parameters]
        self.segments = lay_out(self.parameters[0], list(self.parameters[0]))
        self._optimizers = [self._build_optimizers(rank) for rank in range(self.num_workers)]
        self._generators = [rank_generator(seed, rank) for rank in range(self.world)]
        self.loss_scale = loss_scale
        if loss_scale is not None and _updates_early(strategy):
            raise ValueError(f"{strategy.text}: a step that overflows cannot be skipped, parts of it are applied early")
        if loss_scale is not None and strategy.local_steps > 1:
            raise ValueError(f"{strategy.text}: local steps are not skipped together; use bfloat16 or float32")
        workers = self.parameters[: self.num_workers] if strategy.local_steps > 1 else []
        self._local = [LocalSteps(own, strategy.local_steps) for own in workers]
        self._guards = [Guard(states, strategy.compression.lossy) for states in self.states if loss_scale is not None]
        self._messages = [self._new_messages(rank) for rank in range(self.world)]
        self._cores = [self._new_core(messages) for messages in self._messages]
        self._meetings = Meetings(self.world)
        self._num_steps, self._now_s, self._look_again_s = 0, 0.0, DEFAULT_CYCLE_S

    def _new_messages(self, rank: int) -> RankMessages:
        return RankMessages(
            strategy=self.strategy,
            parameters=self.parameters[rank],
            states=self.states[rank],
            rank=rank,
            world=self.world,
            generator=self._generators[rank],
            compressor=self.strategy.compression,
            guard=self._guards[rank] if self._guards else None,
        )

    def _new_core(self, messages: RankMessages) -> Core:
        return Core(opens=messages.open, world=self.world, num_lanes=1, traffic=Traffic(), clock=lambda: self._now_s)

    @property
    def world(self) -> int:
        """P, the number of virtual ranks."""
        return len(self.models)

    @property
    def traffic_of(self) -> tuple[Traffic, ...]:
        """What each rank sent, in order of rank."""
        return tuple(core.traffic for core in self._cores)

    @property
    def shards(self) -> list[Shards]:
        """What each rank keeps as a server, in order of rank."""
        return [messages.shards for messages in self._messages]

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
        if not self._local or self._step_locally():
            self._exchange_all(arrivals)
        return list(losses)

    def synchronise(self) -> None:
        """Exchange what local steps have changed, before weights are looked at; nothing where all are exchanged."""
        if self._local and self._local[0].num_since:
            self._offer()
            self._exchange_all([(rank, s.name) for s in self.segments for rank in range(self.world)])

    def _step_locally(self) -> bool:
        """Every rank's own step; whether differences of weights are to be exchanged, which then stand for gradients."""
        for rank in range(self.num_workers):
            self._optimizers[rank][""].step()
            self._optimizers[rank][""].zero_grad()
        due = [local.count() for local in self._local]
        if due[0]:
            self._offer()
        return due[0]

    def _offer(self) -> None:
        for local in self._local:
            local.offer()

    def _exchange_all(self, arrivals: Arrivals) -> None:
        self._exchange(arrivals)
        if self._num_steps == 0 and not self.strategy.updates_on_servers:
            # from now on in the order seen on rank 0, as in the engine; servers know their part of each message
            self._count(Broadcast(torch.zeros(len(self.segments), dtype=torch.int32)))
            self.segments = lay_out(self.parameters[0], [name for rank, name in arrivals if rank == 0])
        self._num_steps += 1

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
            "local_steps": [local.state_dict() for local in self._local],
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
        for local, kept in zip(self._local, saved["local_steps"], strict=True):
            local.load_state_dict(kept)
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
        """The loss, and the names in the order in which gradients were whole, absent ones last."""
        self._trained[rank].check()
        parameters = self.parameters[rank]
        order: dict[str, None] = {}
        # Hooks tell autograd's own order; they are made anew each step, so they hold no model alive.
        hooks = [
            parameter.register_post_accumulate_grad_hook(partial(_note, order, name))
            for name, parameter in parameters.items()
        ]
        value = loss(rank, self.models[rank])
        self._trained[rank].check()
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
        self._begin()
        index = {segment.name: segment.index for segment in self.segments}
        for rank, name in arrivals:
            self._cores[rank].ready(index[name])
            # Time passes between gradients, so that a negotiation's clock ticks as it would in a backward.
            self._now_s += ARRIVAL_INTERVAL_S
            self._negotiate()
            self._settle([rank])
        self._finish()
        if not self._skips():
            for rank in range(self.num_workers):
                self._apply(rank, "")

    def _begin(self) -> None:
        scale = 1.0 if self.loss_scale is None else self.loss_scale.scale
        numels = {segment.name: segment.numel for segment in self.segments}
        for core, messages, dispatch in zip(self._cores, self._messages, self._dispatches(), strict=True):
            messages.begin(self._num_steps, self.segments, scale)
            core.begin(dispatch, numels)

    def _dispatches(self) -> Sequence[StaticDispatch | Negotiation]:
        """Every rank's side of one step."""
        if self.strategy.rank_invariant:
            plan = make_plan(self.strategy.packing, self.segments)
            return [StaticDispatch(plan) for _ in self.models]
        return [
            Negotiation(self.strategy, self.segments, rank, self.world, self._look_again_s, clock=lambda: self._now_s)
            for rank in range(self.world)
        ]

    def _negotiate(self) -> float:
        """Let every rank take part in a round of control, then send what it decided; seconds until the next round."""
        pause_s = 0.0
        for rank, core in enumerate(self._cores):
            for action in core.negotiate():
                if isinstance(action, LookAgain):
                    pause_s = max(pause_s, action.after_s)
                else:
                    self._carry_out(rank, action)
        if not self.strategy.rank_invariant:
            self._settle([])  # the round to its end on all ranks, before any of them sends
            self._settle(range(self.world))
        return pause_s

    def _settle(self, ranks: Iterable[int]) -> None:
        """Have `ranks` send, and all go on until nothing is left to do without another event."""
        for rank in ranks:
            self._send(rank)
        while (answer := self._meetings.next_answer()) is not None:
            rank, lane, payload = answer
            for action in self._cores[rank].answered(lane, payload):
                self._carry_out(rank, action)
            if lane != CONTROL:
                self._send(rank)

    def _send(self, rank: int) -> None:
        while (actions := self._cores[rank].send()) is not None:
            for action in actions:
                self._carry_out(rank, action)

    def _carry_out(self, rank: int, action: Action) -> None:
        match action:
            case Start():
                self._meetings.ask(rank, action, self._cores[rank].message_on(action.lane))
            case Landed(names=names):
                for name in names:
                    self._apply(rank, name)

    def _finish(self) -> None:
        """Everything is ready; go on until it has landed. Raises: PlanError or DisagreementError if it never does."""
        num_idle, first = 0, self._cores[0]
        while any(core.left for core in self._cores):
            num_sent = first.traffic.num_messages
            self._now_s += self._negotiate()
            # A packing may hold a tensor back for some cycles, but not for ever.
            num_idle = 0 if first.traffic.num_messages > num_sent else num_idle + 1
            if self._meetings.has_waiting:
                raise DisagreementError(f"{self.strategy.text}: some ranks are done and others are not")
            if num_idle > MAX_IDLE_CYCLES:
                raise PlanError(f"{self.strategy.text}: never sent as a whole: {', '.join(first.left)}")
        if isinstance(first.dispatch, Negotiation):
            self._look_again_s = first.dispatch.look_again_s

    def _count(self, primitive: Primitive) -> None:
        """What every rank sends between two steps."""
        for core in self._cores:
            core.start(CONTROL, Tagged(primitive, "control"))

    def _skips(self) -> bool:
        """Whether the step overflowed on any rank; all ranks then forget it."""
        if self.loss_scale is None:
            return False
        overflow = any(guard.overflowed() for guard in self._guards)
        if self._guards[0].must_agree:
            # Here all guards can be asked at once, but the engine's ranks vote, and the vote has bytes.
            self._count(AllReduce(torch.zeros(1)))
        self.loss_scale = self.loss_scale.after(overflow=overflow)
        if overflow:
            for guard, model in zip(self._guards, self.models, strict=True):
                guard.undo()
                model.zero_grad()
        return overflow

    def _apply(self, rank: int, name: str) -> None:
        """Step the optimizer of a rank that waits for the parameter `name`, or for the whole model."""
        if self._local:
            if rank < self.num_workers and not name:
                self._local[rank].adopt()
        elif rank < self.num_workers and (optimizer := self._optimizers[rank].get(name)) is not None:
            optimizer.step()
            optimizer.zero_grad()


def _note(order: dict[str, None], name: str, parameter: Tensor) -> None:
    if parameter.grad is not None and parameter.grad.is_sparse:
        raise GradientError(SPARSE.format(name))
    order.pop(name, None)  # of a gradient that arrives in parts, the last one counts
    order[name] = None


def _updates_early(strategy: Strategy) -> bool:
    return strategy.update_point is UpdatePoint.AT_PRE_HOOK or strategy.updates_on_servers


def _check_equal(parameters: Sequence[dict[str, nn.Parameter]]) -> None:
    for rank, own in enumerate(parameters):
        first = parameters[0]
        if own.keys() != first.keys() or not all(torch.equal(own[name], first[name]) for name in first):
            raise ValueError(
                f"the model of rank {rank} differs from rank 0's; build it from the seed alone, or start from "
                "replicas(model, world)"
            )
