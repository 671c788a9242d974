"""A message's rounds of flows: the exchange's own generators run on every rank, with sizes in place of tensors.

Collectives of a library are those of the one table (`fabric.collectives`); transfers and all-to-alls say themselves
who sends what to whom. A round's bytes are affine in the message's size, so two small sizes tell all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np

from baselines.api import Aggregate, AllToAll, How, Message, Primitive, Serve, Transfer
from baselines.strategy import Strategy
from fabric.collectives import Collective
from fabric.simulated.traffic import FlowRound, collective_rounds, flow_round
from harness.engine.traffic import tensor_bytes
from harness.predict.costs import LinkCosts
from harness.predict.demand import PROBE_ELEMENTS, Demand, Demands, payload_of, primitives_of

LEAST_BYTES = 1e-3  # a flow of less is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedDemand(Demand):
    """A demand that also says which rounds of flows carry it."""

    rounds: tuple[FlowRound, ...] = ()


@dataclass(frozen=True, slots=True)
class AffineRound:
    """Flows whose bytes are `fixed + slope · n` for n bytes of a rank's payload."""

    sources: np.ndarray
    destinations: np.ndarray
    fixed: np.ndarray
    slope: np.ndarray
    repeats: int

    def of(self, num_bytes: float, scale: float) -> FlowRound | None:
        """The round for so many bytes, each counting `scale` times; None if nothing is sent."""
        sizes = (self.fixed + self.slope * num_bytes) * scale
        # Flows of no bytes would still take a place on each link that they cross.
        sent = sizes > LEAST_BYTES
        if not sent.any():
            return None
        return FlowRound(self.sources[sent], self.destinations[sent], sizes[sent], self.repeats)


@dataclass(slots=True)
class RoutedDemands(Demands):
    """Demands with their rounds. Tensors are `size_scale` times smaller than what they stand for on the network."""

    size_scale: float = 1.0
    _rounds: dict[tuple[How, bool], tuple[AffineRound, ...]] = field(default_factory=dict)

    def of(self, message: Message) -> RoutedDemand:
        """What `message` asks for, round by round."""
        plain = Demands.of(self, message)
        rounds: list[FlowRound] = []
        # A message may ask for more aggregates than the probe did; all further ones are like the last.
        asks = chain(self._asks, repeat(self._asks[-1]))
        for sent_bytes, ask in zip(self._payload_bytes(message), asks, strict=False):
            key = ask.how, ask.equal_sizes
            if key not in self._rounds:
                self._rounds[key] = affine_rounds(self.strategy, self.costs, *key)
            found = (own.of(sent_bytes, self.size_scale) for own in self._rounds[key])
            rounds += [one for one in found if one is not None]
        return RoutedDemand(
            alpha_s=plain.alpha_s,
            bytes_s=plain.bytes_s,
            sent_bytes=plain.sent_bytes,
            framing_bytes=plain.framing_bytes,
            engine_s=plain.engine_s,
            before_s=plain.before_s,
            after_s=plain.after_s,
            rounds=tuple(rounds),
        )


def affine_rounds(strategy: Strategy, costs: LinkCosts, how: How, equal_sizes: bool) -> tuple[AffineRound, ...]:
    """The rounds of one aggregate as functions of its size; alike ones in a row are one with repeats."""
    world = costs.world
    if world == 1:
        return ()
    # every rank's part is whole, so that nothing is padded
    small = PROBE_ELEMENTS * world
    demands = Demands(strategy, costs)
    once, twice = (list(_rounds(demands, how, equal_sizes, numel)) for numel in (small, 2 * small))
    made = []
    for a, b in zip(once, twice, strict=True):
        # Per byte of float32 payload: the two probes differ by `small` elements.
        slope = (b.num_bytes - a.num_bytes) / (4.0 * small)
        made.append(AffineRound(a.sources, a.destinations, a.num_bytes - slope * 4.0 * small, slope, a.repeats))
    return tuple(_merged(made))


def _rounds(demands: Demands, how: How, equal_sizes: bool, numel: int) -> Iterator[FlowRound]:
    world = demands.costs.world
    aggregate = [
        Aggregate(
            payload_of(demands.strategy, how, numel, world), how, "gradient", equal_sizes, merge=lambda own, _: own
        )
        for _ in range(world)
    ]
    runs = [primitives_of(demands.strategy, own, rank, world) for rank, own in enumerate(aggregate)]
    for asked in zip(*runs, strict=True):
        yield from rounds_of(asked)


def rounds_of(asked: Sequence[Primitive]) -> Iterator[FlowRound]:
    """The rounds of one primitive, which every rank has asked for in its own words."""
    first, world = asked[0], len(asked)
    # a server computes, and nothing travels
    if isinstance(first, Serve):
        return
    if isinstance(first, Transfer):
        sent = [
            (rank, own.to, tensor_bytes(own))
            for rank, own in enumerate(asked)
            if isinstance(own, Transfer) and own.to is not None and own.send is not None
        ]
        yield from flow_round(sent)
    elif isinstance(first, AllToAll):
        yield from flow_round(
            (rank, to, part.numel() * part.element_size())
            for rank, own in enumerate(asked)
            if isinstance(own, AllToAll)
            for to, part in enumerate(own.parts)
            if to != rank and part.numel()
        )
    else:
        yield from collective_rounds(Collective(type(first).__name__), world, tensor_bytes(first))


def _merged(rounds: Sequence[AffineRound]) -> Iterator[AffineRound]:
    """Rounds in a row with the same flows as one."""
    last: AffineRound | None = None
    for own in rounds:
        if last is not None and _alike(last, own):
            last = AffineRound(last.sources, last.destinations, last.fixed, last.slope, last.repeats + own.repeats)
            continue
        if last is not None:
            yield last
        last = own
    if last is not None:
        yield last


def _alike(a: AffineRound, b: AffineRound) -> bool:
    return (
        np.array_equal(a.sources, b.sources)
        and np.array_equal(a.destinations, b.destinations)
        and np.allclose(a.slope, b.slope, rtol=1e-12)
        and np.allclose(a.fixed, b.fixed, rtol=1e-12, atol=1e-9)
    )
