"""A step of a network whose operators are partitioned, as data: what a device computes, and what it exchanges when.

The exchanges are those that `baselines.parallelism.operator_costs` counts, in the order in which a step needs them, so
that without overlap the times of a program add up to `total_s`. Where a layer is split over samples or rows, the sum of
its weights' gradients is deferred: nobody waits for it before the update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from baselines.parallelism.operator_costs import OperatorConfig, gather_s, missing_share
from baselines.parallelism.plans import Machine, PlannedLayer, Workshare

CHANNELS_OUT, CHANNELS_IN, DATA = ("channel-out",), ("channel-in",), ("sample", "spatial")


class ExchangeKind(StrEnum):
    """How devices exchange: a sum for all, all parts for all, or what one lacks from another."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True)
class Computation:
    """One pass of a layer on one device."""

    layer: int
    is_forward: bool
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitExchange:
    """Devices along `dimensions` of a layer's split exchange a tensor of `num_bytes`, the gathered or summed one whole.

    A `FETCH` is one message from another device. Nobody waits for an `is_deferred` one before the step's end.
    """

    layer: int
    kind: ExchangeKind
    num_bytes: float
    num_devices: int
    dimensions: tuple[str, ...] = ()
    is_deferred: bool = False

    def duration_s(self, machine: Machine) -> float:
        """Around a ring; a fetch is one message."""
        if self.kind is ExchangeKind.ALL_REDUCE:
            return machine.all_reduce_s(self.num_bytes, self.num_devices)
        if self.kind is ExchangeKind.ALL_GATHER:
            return gather_s(machine, self.num_bytes, self.num_devices)
        return machine.message_s(self.num_bytes)

    @property
    def sent_bytes(self) -> float:
        """Bytes that one device sends."""
        rounds = {ExchangeKind.ALL_REDUCE: 2, ExchangeKind.ALL_GATHER: 1}.get(self.kind)
        return self.num_bytes * (rounds * (self.num_devices - 1) / self.num_devices if rounds else 1)


SplitInstruction = Computation | SplitExchange


def split_program(
    layers: Sequence[PlannedLayer], configs: Sequence[OperatorConfig], work: Workshare, input_bytes: int = 0
) -> tuple[SplitInstruction, ...]:
    """One device's step; all devices do the same. `input_bytes` are one sample's before the first layer."""
    before_bytes = [input_bytes, *(layer.output_bytes for layer in layers[:-1])]
    program: list[SplitInstruction] = []
    for place in range(len(layers)):
        if place:
            program += _border(place, before_bytes[place], configs[place - 1], configs[place], work)
        program += _forward(place, layers[place], configs[place], work)
    for place in reversed(range(len(layers))):
        program += _backward(place, layers[place], before_bytes[place], configs[place], work)
        if place:
            program += _border(place, before_bytes[place], configs[place], configs[place - 1], work)
    return tuple(program)


def _forward(place: int, layer: PlannedLayer, config: OperatorConfig, work: Workshare) -> Iterator[SplitInstruction]:
    yield Computation(place, True, work.batch_size * layer.forward_s / config.num_devices)
    out = work.batch_size / (config.sample * config.spatial) * layer.output_bytes
    # Parts of the outputs are put together, partial sums over parts of the inputs are added.
    yield from _exchange(place, ExchangeKind.ALL_GATHER, out, config.channel_out, CHANNELS_OUT)
    yield from _exchange(place, ExchangeKind.ALL_REDUCE, out, config.channel_in, CHANNELS_IN)


def _backward(
    place: int, layer: PlannedLayer, input_bytes: int, config: OperatorConfig, work: Workshare
) -> Iterator[SplitInstruction]:
    yield Computation(place, False, work.batch_size * layer.backward_s / config.num_devices)
    into = work.batch_size / (config.sample * config.spatial) * input_bytes
    # The transposes of forward's two.
    yield from _exchange(place, ExchangeKind.ALL_REDUCE, into, config.channel_out, CHANNELS_OUT)
    yield from _exchange(place, ExchangeKind.ALL_GATHER, into, config.channel_in, CHANNELS_IN)
    weight_bytes = layer.parameter_bytes / (config.channel_out * config.channel_in)
    num_copies = config.sample * config.spatial
    yield from _exchange(place, ExchangeKind.ALL_REDUCE, weight_bytes, num_copies, DATA, is_deferred=True)


def _exchange(
    place: int,
    kind: ExchangeKind,
    num_bytes: float,
    num_devices: int,
    dimensions: tuple[str, ...],
    *,
    is_deferred: bool = False,
) -> Iterator[SplitExchange]:
    # A layer without weights of its own still pays α in the planners' costs, and so it does here.
    if num_devices > 1:
        yield SplitExchange(
            layer=place,
            kind=kind,
            num_bytes=num_bytes,
            num_devices=num_devices,
            dimensions=dimensions,
            is_deferred=is_deferred,
        )


def _border(
    place: int, num_bytes: int, held: OperatorConfig, wanted: OperatorConfig, work: Workshare
) -> Iterator[SplitExchange]:
    lacking = missing_share(held, wanted) * work.batch_size * num_bytes
    if lacking > 0:
        yield SplitExchange(layer=place, kind=ExchangeKind.FETCH, num_bytes=lacking, num_devices=2)
