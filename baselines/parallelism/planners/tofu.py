"""Tofu: every operator is split over all devices along the dimension that moves the fewest bytes, factor by factor.

Paper: Wang, Huang and Li, Supporting Very Large Models using Automatic Dataflow Graph Partitioning, EuroSys 2019. An
operator is partitioned along one dimension and its parts are put together or summed (partition-n-reduce). A dynamic
programme over the coarsened graph, here the chain of layers, finds the split of least communication for k devices.
For k = k₁·k₂·… it is applied recursively: split for k₁ groups, then each part for k₂, so a layer may be split along
several dimensions. The cost is the bytes that a device sends, unit B.

Each factor is optimal given those before it; the tests say how far that is from the best of all.
Differs from the paper: dimensions are those of a layer (samples, channels out and in, rows) and not of every operator's
description; a layer without a dimension that fits stays whole, and its output is what every device needs anyway.
Not verified against the paper's text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from baselines.parallelism.api import ParallelCard
from baselines.parallelism.operator_costs import OperatorConfig, border_s, fits, layer_s
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare

_DIMENSIONS = ("sample", "channel_out", "channel_in", "spatial")
BYTES_ALONE = Machine(num_devices=1, alpha_s=0.0, beta_s_per_byte=1.0)  # seconds are then bytes


@dataclass(frozen=True, slots=True)
class _Still:
    """A layer as Tofu counts it: it takes no time."""

    name: str
    parameter_bytes: int
    output_bytes: int
    saved_bytes: int
    tied_bytes: int
    extents: dict[str, int]
    forward_s: float = 0.0
    backward_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tofu:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="tofu",
        summary="partition-n-reduce per layer, the fewest bytes, recursively over the factors of the devices",
        paper="Wang, Huang and Li, EuroSys 2019",
    )

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """Splits factor by factor, each of least communication given those before it; the cost in bytes per device."""
        still = [still_of(layer) for layer in layers]
        configs = [OperatorConfig() for _ in layers]
        cost = 0.0
        for factor in prime_factors(machine.num_devices):
            cost, configs = best_factor(still, configs, factor, work)
        return ParallelPlan(
            stages=(PlannedStage(0, len(layers), machine.num_devices),),
            splits=tuple(config.splits() for config in configs),
            cost=cost,
            unit="B",
        )


def still_of(layer: PlannedLayer) -> _Still:
    """A layer whose cost is its communication alone."""
    return _Still(
        layer.name, layer.parameter_bytes, layer.output_bytes, layer.saved_bytes, layer.tied_bytes, dict(layer.extents)
    )


def choices(layer: PlannedLayer, config: OperatorConfig, factor: int, work: Workshare) -> list[OperatorConfig]:
    """The layer split `factor` times more, along each dimension that allows it; as it is where none does."""
    found = []
    for name in _DIMENSIONS:
        if name != "sample" and name.replace("_", "-") not in layer.extents:
            continue
        more = replace(config, **{name: getattr(config, name) * factor})
        if fits(layer, more, work):
            found.append(more)
    return found or [config]


def best_factor(
    layers: Sequence[PlannedLayer], configs: Sequence[OperatorConfig], factor: int, work: Workshare
) -> tuple[float, list[OperatorConfig]]:
    """(bytes per device, configurations) after one more factor."""
    best: dict[OperatorConfig, tuple[float, list[OperatorConfig]]] = {}
    before_bytes = 0
    for place, (layer, config) in enumerate(zip(layers, configs, strict=True)):
        here = {}
        for choice in choices(layer, config, factor, work):
            own = layer_s(layer, before_bytes, choice, BYTES_ALONE, work)
            ways = [
                (cost + border_s(before_bytes, before, choice, BYTES_ALONE, work.batch_size), path)
                for before, (cost, path) in best.items()
            ]
            cost, path = min(ways, key=lambda way: way[0]) if place else (0.0, [])
            here[choice] = cost + own, [*path, choice]
        best, before_bytes = here, layer.output_bytes
    return min(best.values(), key=lambda way: way[0])


def prime_factors(number: int) -> list[int]:
    """Ascending."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors
