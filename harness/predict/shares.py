"""How many times a rank sends its payload by an exchange, learnt by running the exchange's own generator."""

from __future__ import annotations

import math

from baselines.api import Aggregate, How, NeedsWorld
from baselines.strategy import Strategy
from harness.engine.traffic import sent_by
from harness.predict.demand import PROBE_ELEMENTS, num_servers, payload_of, primitives_of, unlike_ranks


def sent_share(strategy: Strategy, how: How, world: int) -> float | None:
    """How many times its payload, size headers apart, the rank sends that sends most: records count that one's bytes,
    a server's too. What is scattered comes back as a code of each server's part.

    Servers have equal parts here. None where the exchange does not go with so many ranks.
    """
    if isinstance(strategy.exchange, NeedsWorld) and strategy.exchange.why_unfit(world):
        return None
    # Every rank's and every server's part is whole, and headers of a fixed size fall out of the difference.
    small = PROBE_ELEMENTS * math.lcm(world, num_servers(strategy, world))
    ranks = unlike_ranks(world)
    once, twice = ([_sent_bytes(strategy, how, numel, rank, world) for rank in ranks] for numel in (small, 2 * small))
    return max(more - less for less, more in zip(once, twice, strict=True)) / (4 * small)


def _sent_bytes(strategy: Strategy, how: How, numel: int, rank: int, world: int) -> float:
    payload = payload_of(strategy, how, numel, world)
    aggregates = [Aggregate(payload, how, "gradient", equal_sizes=True, merge=lambda own, _: own)]
    if how is How.SCATTER:
        aggregates.append(Aggregate(payload[:1], How.CONCAT, "gradient", equal_sizes=True))
    return sum(
        sent_by(primitive, world).payload_bytes
        for aggregate in aggregates
        for primitive in primitives_of(strategy, aggregate, rank, world)
    )
