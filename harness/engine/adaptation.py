"""Adaptation while training: a strategy is bound to measured costs, and its settings are searched.

At a step boundary, when no message is under way, every rank asks its `Adaptation` for the strategy of the step to come:

    step 0               α and β: exchanges of a few sizes on all lanes at once (for a strategy that needs costs)
    step 6, 26, 46, …    rank 0's layer times, medians over the last 20 steps, go to all ranks, and all bind the
                         strategy to them: the first time, and where they have drifted by more than a fifth
    step 6, 6+k, 6+2k …  the tuner's trials, k steps each, the first one with the settings as written

What is agreed is rank 0's, so every rank comes to the same strategy. Step times too are rank 0's, from boundary to
boundary: ranks are synchronous, so it sees the slowest. A step between them that was interrupted (an evaluation) does
not count: a trial's time is the median. All of it is on the clock of training, as it would be in use.

Layer times come from hooks: when each gradient became ready, when each module with parameters began its forward. They
leave out the time that the loop waited for messages. On a GPU the hooks see launches, not work: not yet run there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter

import torch

from baselines.api import (
    Aggregate,
    Broadcast,
    Costs,
    How,
    Payload,
    Primitive,
    Segment,
    Serve,
    Tried,
)
from baselines.strategy import Strategy
from harness.calibrate import fit_link
from harness.engine.layer_graph import ModuleGraph
from harness.engine.traffic import PROBE
from harness.engine.transport import CONTROL
from results.record import Adapted

# Before the first is bound or tried. The first step never counts, and of two a median is a mean, which one late
# gradient moves: MG-WFBP then merged 4,097 or 6,221 elements first, and a step took 195 or 211 ms.
WARM_STEPS = 6
REVIEW_EVERY = 20
DRIFT = 0.2
LARGE = 0.1  # of all backward time: a layer whose drift counts on its own
PROBE_BYTES = (4_096, 65_536, 524_288, 2_097_152)
PROBE_REPEATS = 3
ROW_BYTES = 32_768  # small probes are timed in rows: ranks leave an exchange at different times

Clock = Callable[[], float]
Asked = tuple[tuple[int, Primitive], ...]  # primitives to carry out together, each on its lane
Talk = Generator[Asked, tuple[Payload, ...], Strategy]


class LayerTimes:
    """When gradients became ready and layers began on this rank, step by step, by `clock`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began: dict[str, float] = {}  # when the layer began that first needs the parameter, in order
        self._ended_s: float | None = None  # the forward
        self._backward_s = 0.0
        self._step_forward_s: dict[str, float] = {}
        self._step_ready_s: dict[str, float] = {}
        self._ready_s: dict[str, deque[float]] = {}
        self._forward_s: dict[str, deque[float]] = {}

    def begin_forward(self) -> None:
        """The model's forward begins; what came before belongs to another batch."""
        self._began, self._ended_s = {}, None

    def begin_layer(self, names: Iterable[str]) -> None:
        """A module with these parameters begins its forward; only the first use of a parameter counts."""
        now_s = self._clock()
        for name in names:
            self._began.setdefault(name, now_s)

    def end_forward(self) -> None:
        """The model's forward ended."""
        self._ended_s = self._clock()

    def begin_backward(self) -> None:
        """Forward is over, backward begins."""
        self._backward_s = self._clock()
        layers = pairwise([*self._began.values(), self._ended_s or self._backward_s])
        self._step_forward_s = {name: end_s - at_s for name, (at_s, end_s) in zip(self._began, layers, strict=True)}
        self._step_ready_s = {}
        self.begin_forward()

    def ready(self, name: str) -> None:
        """A gradient is ready."""
        self._step_ready_s[name] = self._clock() - self._backward_s

    def end_step(self, *, keep: bool) -> None:
        """The step whose backward was the last to begin is over; `keep` what was seen. The next forward may be over."""
        if keep:
            _keep(self._ready_s, self._step_ready_s)
            _keep(self._forward_s, self._step_forward_s)
        self._step_forward_s, self._step_ready_s = {}, {}

    def medians(self, names: Sequence[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """`Costs.backward_s` and `Costs.forward_s` of parameters in ready order; medians over the last steps."""
        backward_s, before_s = [], 0.0
        for name in names:
            at_s = max(before_s, _median_s(self._ready_s, name))
            backward_s.append(at_s - before_s)
            before_s = at_s
        return tuple(backward_s), tuple(_median_s(self._forward_s, name) for name in names)


def _keep(into: dict[str, deque[float]], times_s: dict[str, float]) -> None:
    for name, value_s in times_s.items():
        into.setdefault(name, deque(maxlen=REVIEW_EVERY)).append(value_s)


def _median_s(times_s: dict[str, deque[float]], name: str) -> float:
    return median(times_s[name]) if name in times_s else 0.0


def adapts(strategy: Strategy) -> bool:
    """Whether there is anything to do for this strategy."""
    return strategy.needs_costs or strategy.tuning.num_trials > 0


def settled_after(strategy: Strategy) -> int:
    """How many steps pass until this strategy is what it will be, drifts apart; a shorter warm-up measures them too."""
    tuning_steps = strategy.tuning.num_trials * strategy.tuning.num_steps
    return WARM_STEPS + tuning_steps if adapts(strategy) else 0


class Adaptation:
    """One rank's side, asked at every step boundary. `layer_clock` leaves out what `clock` shows of waiting;
    `num_queued` messages per lane may queue up in the library."""

    def __init__(
        self,
        strategy: Strategy,
        rank: int,
        world: int,
        *,
        device: torch.device | None = None,
        clock: Clock = perf_counter,
        layer_clock: Clock | None = None,
        num_queued: int = 1,
    ) -> None:
        self._num_queued = num_queued
        self._rank, self._world, self._device, self._clock = rank, world, device, clock
        self._needs_costs, self._tuner, self._knobs = strategy.needs_costs, strategy.tuning, strategy.knobs
        self.layers = LayerTimes(layer_clock or clock)
        self.costs: Costs | None = None
        self.graph: ModuleGraph | None = None
        self._link = (0.0, 0.0)
        self._number = 0
        self._tried: list[Tried] = []
        self._report: list[Adapted] = []
        self._steps_s: list[float] = []
        self._began_s: float | None = None
        if rank == 0 and self._tuner.num_trials:
            self._tuner.propose(self._knobs, ())  # what its library takes to load is no part of training

    def report(self) -> tuple[Adapted, ...]:
        """What was bound, tried and chosen so far; equal on all ranks."""
        return tuple(self._report)

    def next_strategy(self, strategy: Strategy, segments: Sequence[Segment]) -> Talk:
        """The strategy for the step that begins now, given the one until now and the parameters in ready order."""
        number, self._number = self._number, self._number + 1
        if self._began_s is not None:
            self._steps_s.append(self._clock() - self._began_s)
        # The first step loads libraries and opens connections, and is like no other.
        self.layers.end_step(keep=number > 1)
        if self._needs_costs and number == 0:
            sizes = probe_sizes(sum(segment.nbytes for segment in segments))
            self._link = yield from measure_link(
                strategy, sizes, self._rank, self._world, self._device, self._clock, num_queued=self._num_queued
            )
        if self._needs_costs and number >= WARM_STEPS and (number - WARM_STEPS) % REVIEW_EVERY == 0:
            strategy = yield from self._review(strategy, segments, number)
        if self._tuner.num_trials and number >= WARM_STEPS:
            strategy = yield from self._tune(strategy, number)
        self._began_s = self._clock()
        return strategy

    def _review(self, strategy: Strategy, segments: Sequence[Segment], number: int) -> Talk:
        """Agree on the costs as they are now; bind if there are none yet or they have drifted."""
        backward_s, forward_s = self.layers.medians([segment.name for segment in segments])
        costs = torch.tensor([*self._link, *backward_s, *forward_s], dtype=torch.float64)
        ((agreed,),) = yield ((CONTROL, Broadcast(costs)),)
        alpha_s, beta_s_per_byte, *layers_s = agreed.tolist()
        half = len(segments)
        places = {segment.name: place for place, segment in enumerate(segments)}
        fresh = Costs(
            alpha_s,
            beta_s_per_byte,
            tuple(layers_s[:half]),
            tuple(layers_s[half:]),
            nbytes=tuple(segment.nbytes for segment in segments),
            needs=needs_of(self.graph, places),
        )
        if self.costs is not None and not drifted(self.costs, fresh):
            return strategy
        self.costs = fresh
        values = {
            "alpha_s": alpha_s,
            "beta_s_per_byte": beta_s_per_byte,
            "backward_s": sum(fresh.backward_s),
            "forward_s": sum(fresh.forward_s),
        }
        self._report.append(Adapted(step=number, what="bound", values=values))
        return strategy.bound(fresh)

    def _tune(self, strategy: Strategy, number: int) -> Talk:
        """At the end of a trial: what it gave, and what comes next."""
        trial, step = divmod(number - WARM_STEPS, self._tuner.num_steps)
        # Within a trial, or after the last one, nothing is said.
        if step or trial > self._tuner.num_trials:
            return strategy
        spent_s, self._steps_s = self._steps_s, []
        if trial == 0:
            return strategy
        settings = strategy.settings
        # On other ranks the size is all that matters: rank 0's numbers overwrite these.
        told = [0.0] * (1 + len(settings))
        if self._rank == 0:
            step_s = median(spent_s)
            proposed = self._tuner.propose(self._knobs, [*self._tried, Tried(settings, step_s)])
            told = [step_s, *(proposed[knob] for knob in settings)]
        ((agreed,),) = yield ((CONTROL, Broadcast(torch.tensor(told, dtype=torch.float64))),)
        step_s, *values = agreed.tolist()
        self._tried.append(Tried(settings, step_s))
        self._report.append(Adapted(step=number, what="tried", values=settings, step_s=step_s))
        strategy = strategy.tuned(dict(zip(settings, values, strict=True)))
        if trial == self._tuner.num_trials:
            kept = [tried.step_s for tried in self._tried if tried.values == strategy.settings]
            self._report.append(
                Adapted(step=number, what="chosen", values=strategy.settings, step_s=min(kept, default=None))
            )
        return strategy


def needs_of(graph: ModuleGraph | None, places: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """`Costs.needs` of parameters by their places in ready order; a parameter that no layer's forward used, itself."""
    if graph is None or not graph.needs:
        return ()
    return tuple(
        tuple(sorted(places[need] for need in graph.needs.get(name, (name,)) if need in places)) for name in places
    )


def drifted(before: Costs, now: Costs) -> bool:
    """Whether all of backward, or one large layer of it, takes another time by more than a fifth."""
    total_s = sum(before.backward_s)
    pairs = [(total_s, sum(now.backward_s))]
    pairs += [(b, n) for b, n in zip(before.backward_s, now.backward_s, strict=True) if max(b, n) > LARGE * total_s]
    return any(abs(n - b) > DRIFT * b for b, n in pairs)


def probe_sizes(all_bytes: int) -> tuple[int, ...]:
    """Bytes of the sums that are timed: no more than all gradients together, as no message is larger; two at least.

    A replayed network 500 times smaller on a link 500 times slower would else probe for half a minute.
    """
    return tuple(size for size in PROBE_BYTES if size <= all_bytes) if all_bytes >= PROBE_BYTES[1] else PROBE_BYTES[:2]


def measure_link(
    strategy: Strategy,
    sizes: Sequence[int],
    rank: int,
    world: int,
    device: torch.device | None,
    clock: Clock,
    *,
    num_queued: int = 1,
) -> Generator[Asked, tuple[Payload, ...], tuple[float, float]]:
    """α and β of one of many messages, by the time of sums of these bytes with nothing else to do.

    As many are in flight as the ordering allows, since plans take messages one after the other: what they wait for side
    by side counts once. So many queue up on a lane as will in training. Takes about a second on a link of
    200 Mbit/s. The first exchange, which may open connections, does not count.
    """
    times_s: dict[int, float] = {}
    yield from _exchanges(strategy, sizes[0], rank, world, device)
    for nbytes in sizes:
        count = max(1, ROW_BYTES // nbytes)
        num_at_once = min(count, num_queued)
        repeats_s = []
        for _ in range(PROBE_REPEATS):
            start_s = clock()
            for _ in range(count // num_at_once):
                yield from _exchanges(strategy, nbytes, rank, world, device, num_at_once)
            num_sent = count // num_at_once * num_at_once * strategy.ordering.depth
            repeats_s.append((clock() - start_s) / num_sent)
        times_s[nbytes] = max(median(repeats_s), 1e-9)
    link = fit_link(times_s, relative=False)
    return link.alpha_s, link.beta_s_per_byte


def _exchanges(
    strategy: Strategy, nbytes: int, rank: int, world: int, device: torch.device | None, num_queued: int = 1
) -> Generator[Asked, tuple[Payload, ...], None]:
    """The same exchange on every lane, in step; so many at once one behind the other on each."""
    lanes = [*range(strategy.ordering.depth)] * num_queued
    sums = [Aggregate((torch.zeros(nbytes // 4, device=device),), How.SUM, PROBE) for _ in lanes]
    runs = [strategy.exchange.run(own, rank, world) for own in sums]
    try:
        primitives = [next(run) for run in runs]
        while True:
            answers: tuple[Payload, ...]
            if isinstance(primitives[0], Serve):  # nothing is served: a probe is no version of the parameters
                answers = tuple((own.grad,) for own in primitives if isinstance(own, Serve))
            else:
                answers = yield tuple(zip(lanes, primitives, strict=True))
            primitives = [run.send(answer) for run, answer in zip(runs, answers, strict=True)]
    except StopIteration:
        return
