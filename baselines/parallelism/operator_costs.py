"""What a layer costs whose operators are partitioned: compute, collectives inside it, and a new layout between layers.

A layer's configuration has a degree per dimension; their product is the number of devices that work on it. Its weights
are split over channels, its activations over samples and rows (spatial). What travels, in bytes per device and step:

    channels out   the output is gathered, the gradient of the input summed
    channels in    the output is summed, the gradient of the input gathered
    samples, rows  gradients of the weights are summed; a row's neighbours, the halo, are left out
    between layers a device fetches what of its new share of the samples and rows it does not hold, both ways

Layers follow each other without overlap, so that costs add up along the chain, and a change of one layer's
configuration concerns that layer and its two borders alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.plans import LayerSplit, Machine, PlannedLayer, Workshare


@dataclass(frozen=True, slots=True)
class OperatorConfig:
    """Degrees by dimension."""

    sample: int = 1
    channel_out: int = 1
    channel_in: int = 1
    spatial: int = 1

    @property
    def num_devices(self) -> int:
        """Devices that work on the layer."""
        return self.sample * self.channel_out * self.channel_in * self.spatial

    def splits(self) -> tuple[LayerSplit, ...]:
        """Its dimensions that are really split."""
        return tuple(LayerSplit(name, degree) for name, degree in self.degrees().items() if degree > 1)

    def degrees(self) -> dict[str, int]:
        """Degrees by the dimensions' names."""
        return {
            "sample": self.sample,
            "channel-out": self.channel_out,
            "channel-in": self.channel_in,
            "spatial": self.spatial,
        }


def fits(layer: PlannedLayer, config: OperatorConfig, work: Workshare) -> bool:
    """Whether every degree divides the extent of its dimension."""
    for name, degree in config.degrees().items():
        extent = work.micro_batch_size if name == "sample" else layer.extents.get(name, 1)
        if extent % degree:
            return False
    return True


def configs_of(layer: PlannedLayer, num_devices: int, work: Workshare) -> tuple[OperatorConfig, ...]:
    """All configurations that fit and whose number of devices divides `num_devices`, the most devices first."""
    divisors = [number for number in range(1, num_devices + 1) if num_devices % number == 0]
    dividing = (own for own in itertools.product(divisors, repeat=4) if num_devices % math.prod(own) == 0)
    fitting = [config for own in dividing if fits(layer, config := OperatorConfig(*own), work)]
    return tuple(sorted(fitting, key=lambda config: (-config.num_devices, config.splits() != (), str(config))))


def layer_s(layer: PlannedLayer, input_bytes: int, config: OperatorConfig, machine: Machine, work: Workshare) -> float:
    """A step of one layer: compute and the collectives inside it. `input_bytes` are per sample."""
    compute_s = work.batch_size * (layer.forward_s + layer.backward_s) / config.num_devices
    share = work.batch_size / (config.sample * config.spatial)
    into, out = share * input_bytes, share * layer.output_bytes
    weight_bytes = layer.parameter_bytes / (config.channel_out * config.channel_in)
    return (
        compute_s
        + gather_s(machine, out, config.channel_out)
        + machine.all_reduce_s(into, config.channel_out)
        + machine.all_reduce_s(out, config.channel_in)
        + gather_s(machine, into, config.channel_in)
        + machine.all_reduce_s(weight_bytes, config.sample * config.spatial)
    )


def border_s(output_bytes: int, before: OperatorConfig, after: OperatorConfig, machine: Machine, batch: int) -> float:
    """Fetch what a device lacks of its new share of the activations, and on the way back of their gradient."""
    there = missing_share(before, after) * batch * output_bytes
    back = missing_share(after, before) * batch * output_bytes
    return sum(machine.message_s(num_bytes) for num_bytes in (there, back) if num_bytes > 0)


def gather_s(machine: Machine, num_bytes: float, num_devices: int) -> float:
    """A ring's all-gather of what is `num_bytes` in the end."""
    return (num_devices - 1) * machine.message_s(num_bytes / num_devices)


def total_s(
    layers: Sequence[PlannedLayer],
    configs: Sequence[OperatorConfig],
    machine: Machine,
    work: Workshare,
    input_bytes: int = 0,
) -> float:
    """The whole chain."""
    if len(configs) != len(layers):
        raise ParallelismError(f"{len(configs)} configurations for {len(layers)} layers; give one for each")
    total = 0.0
    before_bytes = input_bytes
    for place, (layer, config) in enumerate(zip(layers, configs, strict=True)):
        total += layer_s(layer, before_bytes, config, machine, work)
        if place:
            total += border_s(before_bytes, configs[place - 1], config, machine, work.batch_size)
        before_bytes = layer.output_bytes
    return total


def missing_share(held: OperatorConfig, wanted: OperatorConfig) -> float:
    """The part of the whole tensor that a device wants and does not hold. Shares are contiguous, so that of two nested
    degrees the larger share holds the smaller one, and others meet as if by chance."""
    both = 1.0
    for old, new in ((held.sample, wanted.sample), (held.spatial, wanted.spatial)):
        nested = old % new == 0 or new % old == 0
        both *= 1 / max(old, new) if nested else 1 / (old * new)
    return 1 / (wanted.sample * wanted.spatial) - both
