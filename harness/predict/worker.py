"""Workers on the virtual clock: the loop, and a core whose messages have sizes and stage costs in place of tensors.

A worker has two threads. The main one follows `harness.loop` and the sessions of the system `ours`: wait, update,
forward, backward, parameters ready layer by layer. The other one drives the same core (`harness.engine.core`) as the
engine does, and lets the time pass that the engine, a codec and the link take. Nothing here decides anything of its
own. Where all workers are equal, one stands for all of them; where they differ, each has one, and they meet on a
`Medium`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from baselines.api import AllGather, Broadcast, Gather, Payload, Primitive, UpdatePoint
from baselines.strategy import Strategy
from crossover.policies import Extent
from crossover.simulator.fluid import Action as ClockAction
from crossover.simulator.fluid import Agenda, Fluid
from harness.engine.core import Action, Core, Landed, LinkTurn, LookAgain, Start
from harness.engine.dispatch import StaticDispatch, make_plan
from harness.engine.negotiate import ControlPrimitive, Negotiation
from harness.engine.reduction import Tagged
from harness.engine.straight import NUM_QUEUED
from harness.engine.traffic import Planned, Traffic, tensor_bytes
from harness.engine.transport import CONTROL, Done
from harness.predict.clock import PARK, Routine, Thread, carry, run_until
from harness.predict.costs import LinkCosts, PredictError
from harness.predict.demand import Demand, Demands, queues_up
from harness.predict.layers import Layers

STALLED = 1e12  # by what computation takes longer while a codec has the device
LEAST_PAUSE_S = 1e-9  # the clock must move, whatever rounding does
LINK: tuple[int, Payload] = (-2, ())  # what the communication thread finds when the link's turn has come


@dataclass(slots=True)
class Totals:
    """Sums since the start, in seconds, messages and bytes sent by a rank; at the moment `at_s` of an update."""

    at_s: float = 0.0
    compute_s: float = 0.0
    communication_s: float = 0.0
    exposed_s: float = 0.0
    turn_wait_s: float = 0.0
    num_messages: int = 0
    wire_bytes: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class PlannedRun:
    """A message of known demand: one stage on the link."""

    demand: Demand

    def advance(self, answer: Payload | None) -> Tagged | None:
        """The stage at first, then nothing."""
        return Tagged(self.demand, "gradient") if answer is None else None


class MessageCarrier(Protocol):
    """What carries a worker's primitives on the clock, and what it says that they cost."""

    @property
    def clock(self) -> Agenda: ...

    @property
    def costs(self) -> LinkCosts: ...

    def demands(self, strategy: Strategy) -> Demands:
        """The demands of a strategy's messages, in the carrier's own terms."""
        ...

    def start(self, rank: int, lane: int, primitive: Primitive | Planned, done: Done) -> None:
        """`rank` asks for `primitive`; `done` gets its answer when it has been carried."""
        ...


class DeviceSeat(Protocol):
    """A job's place on the host whose device and link it may share with other jobs."""

    @property
    def extent(self) -> Extent:
        """What a turn lasts until."""
        ...

    @property
    def shares_link(self) -> bool:
        """Whether jobs take turns on the link."""
        ...

    @property
    def num_computing(self) -> int:
        """How many jobs share the device at the moment, this one included."""
        ...

    def take_turn(self, granted: ClockAction) -> None:
        """Ask for the device; `granted` is called when it is this job's turn."""
        ...

    def end_turn(self) -> None:
        """Give the device to the next job."""
        ...

    def take_link(self, granted: ClockAction) -> None:
        """Ask for the link; `granted` is called when it is this job's turn."""
        ...

    def end_link_turn(self) -> None:
        """Give the link to the next job."""
        ...

    def begin_compute(self, respeed: ClockAction) -> None:
        """The job computes from now on; `respeed` is called when the others' coming and going changes its pace."""
        ...

    def end_compute(self) -> None:
        """The job has stopped computing."""
        ...

    def leave(self) -> None:
        """The job has made its last step, and nobody waits for it any more."""
        ...


@dataclass(frozen=True, slots=True)
class OwnHost:
    """A host that the job has to itself: every turn begins at once."""

    extent: Extent = Extent.BACKWARD
    shares_link: bool = False
    num_computing: int = 1

    def take_turn(self, granted: ClockAction) -> None:
        """At once."""
        granted()

    def end_turn(self) -> None:
        """Nobody waits for it."""

    def take_link(self, granted: ClockAction) -> None:
        """At once."""
        granted()

    def end_link_turn(self) -> None:
        """Nobody waits for it."""

    def begin_compute(self, respeed: ClockAction) -> None:
        """Nobody else is slowed."""

    def end_compute(self) -> None:
        """Nobody else goes faster."""

    def leave(self) -> None:
        """Nobody waits."""


@dataclass(slots=True)
class Medium:
    """The link that `num_workers` share, in step: a primitive begins when all have asked for it on its lane."""

    clock: Agenda
    costs: LinkCosts
    num_workers: int = 1
    _link: Fluid = field(init=False)
    _asked: dict[int, dict[int, tuple[Primitive | Planned, Done]]] = field(default_factory=dict)
    _queue: deque[tuple[Demand, float, ClockAction]] = field(default_factory=deque)  # with the end of its gap

    def __post_init__(self) -> None:
        self._link = Fluid(self.clock)

    def demands(self, strategy: Strategy) -> Demands:
        """Demands in seconds of this one link."""
        return Demands(strategy, self.costs)

    def start(self, rank: int, lane: int, primitive: Primitive | Planned, done: Done) -> None:
        """`rank` asks; `done` gets its answer when the link has carried what all asked for."""
        asked = self._asked.setdefault(lane, {})
        asked[rank] = (primitive, done)
        if len(asked) == self.num_workers:
            del self._asked[lane]
            done_by_all = partial(tell, asked)
            if isinstance(primitive, Demand) and primitive.queues:
                self._queue.append((primitive, self.clock.now_s + primitive.gap_s, done_by_all))
                if len(self._queue) == 1:
                    self._carry_first()
            else:
                carry(self.clock, self._link, self._phases(primitive), done_by_all)

    def _carry_first(self) -> None:
        first, from_s, _ = self._queue[0]
        gap_s = max(0.0, from_s - self.clock.now_s)
        carry(self.clock, self._link, self.costs.phases(first.alpha_s, first.bytes_s, gap_s), self._go_on)

    def _go_on(self) -> None:
        _, _, done = self._queue.popleft()
        if self._queue:
            self._carry_first()
        done()

    def _phases(self, primitive: Primitive | Planned) -> tuple[float, float, float]:
        if isinstance(primitive, Demand):
            return self.costs.phases(primitive.alpha_s, primitive.bytes_s, primitive.gap_s)
        assert isinstance(primitive, ControlPrimitive), f"{primitive} is no control primitive"
        cost = self.costs.of(type(primitive).__name__)
        bytes_s = cost.beta_s_per_byte * tensor_bytes(primitive) / self.costs.size_scale
        return self.costs.phases(cost.alpha_s, bytes_s, self.costs.gap_before_s(cost.alpha_s + bytes_s))


def tell(asked: Mapping[int, tuple[Primitive | Planned, Done]]) -> None:
    """The answer to each worker: what a worker that stands for all has ready, all have."""
    tensors = [
        primitive.tensor for _, (primitive, _) in sorted(asked.items()) if isinstance(primitive, AllGather | Gather)
    ]
    first = next(iter(asked.values()))[0]
    for rank, (primitive, done) in sorted(asked.items()):
        match primitive, first:
            case AllGather(), _:
                done(tuple(tensors))
            case Gather(), _:
                done(tuple(tensors) if rank == 0 else ())
            case Broadcast(), Broadcast(tensor):
                done((tensor.clone(),))
            case _:
                done(())


class Worker:
    """Trains on the clock of `medium`. `slowdown`: computation takes 1 + slowdown times as long while messages are in
    flight. `seat` is its job's on a host that several share."""

    def __init__(
        self,
        medium: MessageCarrier,
        layers: Layers,
        strategy: Strategy,
        *,
        rank: int = 0,
        slowdown: float = 0.0,
        num_micro_batches: int = 1,
        seat: DeviceSeat | None = None,
    ) -> None:
        self._seat: DeviceSeat = seat or OwnHost()
        self._medium, self._costs, self._rank = medium, medium.costs, rank
        self.clock, self.strategy = medium.clock, strategy
        self._layers, self._segments = layers, layers.segments
        self._eager = strategy.update_point is UpdatePoint.AT_PRE_HOOK
        self._demands = medium.demands(strategy)
        self._plan = make_plan(strategy.packing, self._segments) if strategy.rank_invariant else None
        self._core = Core(
            opens=lambda message, _: PlannedRun(self._demands.of(message)),
            world=self._costs.world,
            num_lanes=NUM_QUEUED if self._demands.queue_up else strategy.ordering.depth,
            traffic=Traffic(),
            clock=lambda: self.clock.now_s,
            shares_link=self._seat.shares_link,
            one_by_one=strategy.sums_one_by_one,
        )
        self.totals, self.marks = Totals(), list[Totals]()
        self._answers: deque[tuple[int, Payload] | None] = deque()
        self._carried: dict[int, Demand] = {}
        self._control = Demand(engine_s=self._costs.engine.by_lane_s)  # beside what the medium knows of it
        self._num_busy, self._busy_since_s = 0, 0.0
        self._device_free_s = self._interpreter_free_s = 0.0
        self._slowdown, self._num_extra = slowdown, num_micro_batches - 1
        self._in_codec = False
        self._communication = Thread(self.clock, self._communicate())
        self._main: Thread | None = None
        self._has_turn = False

    # ---- the main thread

    def train(self, num_steps: int, delay_s: float = 0.0) -> None:
        """Begin so many steps in `delay_s`; a mark is left at each update, one more than steps."""
        self._main = Thread(self.clock, self._train(num_steps, delay_s), self._slowed)

    def exchange(self, num_times: int) -> None:
        """Like `Engine.exchange_once`, so many times: all gradients ready at once, no computation."""
        self._main = Thread(self.clock, self._exchange(num_times), self._slowed)

    @property
    def left(self) -> Collection[str]:
        """Parameters of this step that have not landed."""
        return self._core.left

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return sum(segment.numel for segment in self._segments)

    def _slowed(self) -> float:
        # Not 0 and not infinity: the thread keeps what it has left, and arithmetic stays finite.
        if self._in_codec:
            return STALLED
        beside = 1.0 + self._slowdown if self._num_busy else 1.0
        return beside * self._seat.num_computing

    def _train(self, num_steps: int, delay_s: float) -> Routine:
        if delay_s:
            yield delay_s
        for step in range(num_steps + 1):
            if step and not self._eager:
                yield from self._wait(lambda: not self._core.left)
            # the last update needs no turn, as in the loop, where it follows the last step without one
            if step == num_steps:
                break
            yield from self._take_turn()
            self._mark()
            yield from self._compute(self._update_s if step else 0.0)
            self._device_free_s = self.clock.now_s
            for layer in self._layers.layers:
                if step and self._eager and layer.segments:
                    for segment in layer.segments:
                        yield from self._wait(partial(self._has_landed, segment.name))
                    update_s = self._costs.engine.eager_update_s(len(layer.segments), layer.num_bytes)
                    yield from self._compute(self._interpreted(update_s))
                yield from self._launch(layer.forward_s)
            # all but the last micro-batch send nothing, so it does not matter which one's forward came first
            yield from self._launch(self._num_extra * (self._layers.forward_s + self._layers.backward_s))
            self._begin_step()
            if self._seat.extent is Extent.FORWARD:
                self._seat.end_turn()
            for layer in reversed(self._layers.layers):
                yield from self._launch(layer.backward_s)
                self._announce(segment.index for segment in layer.segments)
            if self._seat.extent is Extent.MESSAGES:
                yield from self._wait(lambda: not self._core.left)
            if self._seat.extent is not Extent.FORWARD:
                self._seat.end_turn()
        self._mark()
        self._seat.leave()

    def _take_turn(self) -> Routine:
        """The loop begins its turn with nothing launched ahead of it, if it had to wait."""
        self._has_turn = False
        asked_s = self.clock.now_s
        self._seat.take_turn(self._begin_turn)
        while not self._has_turn:
            yield PARK
        if self.clock.now_s > asked_s:
            self.totals.turn_wait_s += self.clock.now_s - asked_s
            self._device_free_s = math.inf

    def _begin_turn(self) -> None:
        self._has_turn = True
        assert self._main is not None
        self._main.wake()

    def _exchange(self, num_times: int) -> Routine:
        self._mark()
        for _ in range(num_times):
            self._begin_step()
            self._announce(range(len(self._segments)))
            yield from self._wait(lambda: not self._core.left)
            self._mark()

    @property
    def _update_s(self) -> float:
        engine = self._costs.engine
        if self._eager or self.strategy.updates_on_servers:
            return engine.loop_s
        return engine.loop_s + engine.whole_update_s(len(self._segments), self._layers.num_bytes)

    def _interpreted(self, seconds: float) -> float:
        """How long it takes a thread to do so much of what only one of them can do at a time."""
        start_s = max(self.clock.now_s, self._interpreter_free_s)
        # Both threads of a rank share one interpreter, so such work queues up.
        self._interpreter_free_s = start_s + seconds
        return self._interpreter_free_s - self.clock.now_s

    def _has_landed(self, name: str) -> bool:
        return name not in self._core.left

    def _wait(self, done: Callable[[], bool]) -> Routine:
        start_s = self.clock.now_s
        if done():
            return
        while not done():
            yield PARK
        self.totals.exposed_s += self.clock.now_s - start_s
        self._device_free_s = math.inf

    def _compute(self, seconds: float) -> Routine:
        start_s = self.clock.now_s
        if seconds > 0:
            self._seat.begin_compute(self._respeed)
            yield seconds
            self._seat.end_compute()
        self.totals.compute_s += self.clock.now_s - start_s

    def _launch(self, seconds: float) -> Routine:
        """A layer on the device, which goes on where the last one ended, unless the loop had to wait: then it starts
        now, and so does what follows. The loop is back when the device is through."""
        now_s = self.clock.now_s
        start_s = now_s if self._device_free_s > now_s else self._device_free_s
        self._device_free_s = start_s + seconds
        if (left_s := self._device_free_s - now_s) > 0:
            yield from self._compute(left_s)
            self._device_free_s = self.clock.now_s  # later than thought where messages slowed it

    def _begin_step(self) -> None:
        self._core.begin(self._new_dispatch(), {segment.name: segment.numel for segment in self._segments})

    def _new_dispatch(self) -> StaticDispatch | Negotiation:
        if self._plan is not None:
            return StaticDispatch(self._plan)
        before = self._core.dispatch
        return Negotiation(
            self.strategy,
            self._segments,
            self._rank,
            self._costs.world,
            clock=lambda: self.clock.now_s,
            before=before if isinstance(before, Negotiation) else None,
        )

    def _announce(self, indices: Iterable[int]) -> None:
        for index in indices:
            if self._core.ready(index):
                self._post(None, self._costs.engine.wake_s)

    def _mark(self) -> None:
        # What is still on its way counts up to here, so that periods add up.
        if self._num_busy:
            self._count_busy()
        traffic = self._core.traffic
        self.marks.append(
            replace(
                self.totals,
                at_s=self.clock.now_s,
                num_messages=traffic.num_messages,
                wire_bytes=dict(traffic.wire_bytes),
            )
        )

    # ---- the communication thread

    def _post(self, answer: tuple[int, Payload] | None, wake_s: float = 0.0) -> None:
        """The thread's waking at a message's end is part of that message's α."""
        self._answers.append(answer)
        self._communication.wake(wake_s)

    def _communicate(self) -> Routine:
        while True:
            while not self._answers:
                yield PARK
            answer = self._answers.popleft()
            if answer is LINK:
                yield from self._carry_out(self._core.link_granted())
            elif answer is not None:
                lane, payload = answer
                demand = self._carried.pop(lane)
                yield from self._codec(demand.after_s)
                yield self._interpreted(demand.engine_s / 2)
                yield from self._carry_out(self._core.answered(lane, payload))
            while (actions := self._core.send()) is not None:
                yield from self._carry_out(actions)
            yield from self._carry_out(self._core.negotiate())

    def _carry_out(self, actions: Iterable[Action]) -> Routine:
        for action in actions:
            match action:
                case Start(lane, primitive):
                    demand = primitive if isinstance(primitive, Demand) else self._control
                    self._carried[lane] = demand
                    self._change_busy(int(lane != CONTROL))
                    yield self._interpreted(demand.engine_s / 2)
                    yield from self._codec(demand.before_s)
                    self._medium.start(self._rank, lane, primitive, partial(self._receive, lane))
                case Landed():
                    self._change_busy(-1)
                    assert self._main is not None
                    self._main.wake(self._costs.engine.wake_s)
                case LinkTurn.ASK:
                    self._seat.take_link(self._take_link)
                case LinkTurn.RELEASE:
                    self._seat.end_link_turn()
                case LookAgain(after_s):
                    self.clock.after(after_s + LEAST_PAUSE_S, lambda: self._post(None))

    def _take_link(self) -> None:
        self._post(LINK)

    def _receive(self, lane: int, answer: Payload | Exception) -> None:
        assert not isinstance(answer, Exception)
        self._post((lane, answer))

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

    def _change_busy(self, change: int) -> None:
        if self._num_busy:
            self._count_busy()
        self._num_busy += change
        self._busy_since_s = self.clock.now_s
        if self._main is not None and self._slowdown:
            self._main.respeed()

    def _count_busy(self) -> None:
        self.totals.communication_s += self.clock.now_s - self._busy_since_s
        self._busy_since_s = self.clock.now_s


def run_workers(workers: Sequence[Worker], num_marks: int | Sequence[int]) -> None:
    """Go on until each of `workers`, which are on one clock, has left so many marks.

    Raises: PredictError if messages never come.
    """
    clock = workers[0].clock
    wanted = [num_marks] * len(workers) if isinstance(num_marks, int) else num_marks
    if not run_until(clock, lambda: all(len(own.marks) >= num for own, num in zip(workers, wanted, strict=True))):
        missing = list(dict.fromkeys(name for worker in workers for name in worker.left))
        raise PredictError(f"{workers[0].strategy.text}: never sent as a whole: {', '.join(missing[:5])}")


def bound(strategy: Strategy, layers: Layers, costs: LinkCosts) -> Strategy:
    """The strategy with its planning policies bound to these costs, as the engine binds them."""
    if not strategy.needs_costs:
        return strategy
    # messages that queue up are measured queued up
    own = costs.queued_up() if queues_up(strategy, costs) else costs
    link = own.one_of_many(strategy.ordering.depth)
    return strategy.bound(layers.costs(link.alpha_s, link.beta_s_per_byte))
