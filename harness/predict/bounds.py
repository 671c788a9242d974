"""What no policy can beat: computing alone, all bytes back to back, and the best order of given messages.

The order is searched exactly: one message at a time, each as soon as the one before is through and its gradients are
ready. Every schedule without pre-emption starts its messages in some order, and none starts them sooner than that, so
the best order is the best of all of them. A partial order is given up when what is placed already takes too long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

from baselines.api import Message, UpdatePoint
from baselines.strategy import Strategy
from harness.predict.costs import LinkCosts, PredictError
from harness.predict.demand import Demands
from harness.predict.layers import Layers

MOST_MESSAGES = 8


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds a step: `compute_s` with a free network; `communication_s` of link time, were it never idle."""

    compute_s: float
    communication_s: float

    @property
    def step_s(self) -> float:
        """No step is shorter."""
        return max(self.compute_s, self.communication_s)


@dataclass(frozen=True, slots=True)
class BestOrder:
    """The messages in the order that gives the shortest step, and that step."""

    order: tuple[Message, ...]
    step_s: float


def bounds(layers: Layers, strategy: Strategy, costs: LinkCosts) -> Bounds:
    """What is left of a step of `strategy` if either computation or communication takes no time."""
    whole = Demands(strategy, costs).of(Message(0, layers.segments))
    _, _, link_s = costs.phases(whole.alpha_s, whole.bytes_s)
    return Bounds(compute_s(layers, strategy, costs), link_s)


def compute_s(layers: Layers, strategy: Strategy, costs: LinkCosts) -> float:
    """Forward, backward and update on one worker."""
    segments, engine = layers.segments, costs.engine
    if strategy.update_point is UpdatePoint.AT_PRE_HOOK:
        update_s = sum(engine.eager_update_s(segment.nbytes) for segment in segments)
    else:
        update_s = engine.whole_update_s(len(segments), layers.num_bytes)
    return layers.forward_s + layers.backward_s + update_s


def best_order(layers: Layers, messages: Sequence[Message], strategy: Strategy, costs: LinkCosts) -> BestOrder:
    """The best order of `messages` at the strategy's update point, one in flight at a time.

    Raises: PredictError for more than 8 messages.
    """
    if len(messages) > MOST_MESSAGES:
        raise PredictError(f"{len(messages)} messages; every order is tried, so give at most {MOST_MESSAGES}")
    search = _Search(layers, tuple(messages), strategy, costs)
    search.extend([], 0.0, frozenset(range(len(messages))))
    order = tuple(replace(messages[number], index=place) for place, number in enumerate(search.best))
    return BestOrder(order, search.best_s)


class _Search:
    """Depth-first over all orders; `best` holds message numbers."""

    def __init__(self, layers: Layers, messages: tuple[Message, ...], strategy: Strategy, costs: LinkCosts) -> None:
        self._layers, self._engine = layers, costs.engine
        self._eager = strategy.update_point is UpdatePoint.AT_PRE_HOOK
        self._update_s = compute_s(layers, strategy, costs) - layers.forward_s - layers.backward_s
        demands = Demands(strategy, costs)
        self._alone_s = [demands.of(message).alone_s for message in messages]
        ready_s, at_s = dict[int, float](), 0.0
        for layer in reversed(layers.layers):
            at_s += layer.backward_s
            ready_s.update((segment.index, at_s) for segment in layer.segments)
        self._ready_s = [max(ready_s[s.index] for s in message.segments) for message in messages]
        self._needed_by = [
            [n for n, message in enumerate(messages) if {s.index for s in message.segments} & own]
            for own in ({segment.index for segment in layer.segments} for layer in layers.layers)
        ]
        self.best: tuple[int, ...] = ()
        self.best_s = inf

    def extend(self, order: list[tuple[int, float]], free_s: float, left: frozenset[int]) -> None:
        """`order` holds (message, end) so far; the link is free from `free_s` on."""
        step_s = self._step_s(dict(order))
        if step_s >= self.best_s:
            return
        if not left:
            self.best, self.best_s = tuple(number for number, _ in order), step_s
            return
        for number in sorted(left, key=self._ready_s.__getitem__):
            end_s = max(free_s, self._ready_s[number]) + self._alone_s[number]
            self.extend([*order, (number, end_s)], end_s, left - {number})

    def _step_s(self, ends_s: dict[int, float]) -> float:
        """From the start of one backward to that of the next; messages not placed yet take no time."""
        at_s = self._layers.backward_s
        if not self._eager:
            return max(at_s, *ends_s.values(), 0.0) + self._update_s + self._layers.forward_s
        for layer, needed in zip(self._layers.layers, self._needed_by, strict=True):
            at_s = max(at_s, max((ends_s.get(number, 0.0) for number in needed), default=0.0))
            at_s += sum(self._engine.eager_update_s(s.nbytes) for s in layer.segments) + layer.forward_s
        return at_s
