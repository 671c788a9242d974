"""What no policy can beat: computing alone, and all bytes back to back."""

from __future__ import annotations

from dataclasses import dataclass

from baselines.api import Message, UpdatePoint
from baselines.strategy import Strategy
from harness.predict.costs import LinkCosts
from harness.predict.demand import Demands
from harness.predict.layers import Layers


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds a step: `compute_s` with a free network; `communication_s` of link time, were it never idle."""

    compute_s: float
    communication_s: float

    @property
    def step_s(self) -> float:
        """No step is shorter."""
        return max(self.compute_s, self.communication_s)


def bounds(layers: Layers, strategy: Strategy, costs: LinkCosts) -> Bounds:
    """What is left of a step of `strategy` if either computation or communication takes no time."""
    # One message of everything: the fewest start-ups that any packing can have.
    whole = Demands(strategy, costs).of(Message(0, layers.segments))
    _, _, link_s = costs.phases(whole.alpha_s, whole.bytes_s)
    return Bounds(compute_s(layers, strategy, costs), link_s)


def compute_s(layers: Layers, strategy: Strategy, costs: LinkCosts) -> float:
    """Forward, backward and update on one worker."""
    segments, engine = layers.segments, costs.engine
    if strategy.update_point is UpdatePoint.AT_PRE_HOOK:
        update_s = sum(engine.eager_update_s(len(own.segments), own.num_bytes) for own in layers.layers if own.segments)
    else:
        update_s = engine.whole_update_s(len(segments), layers.num_bytes)
    return layers.forward_s + layers.backward_s + engine.loop_s + update_s
