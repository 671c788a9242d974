"""HyPar: each layer is data- or model-parallel, chosen per level of a binary tree of devices by a two-state programme.

Paper: Song et al., HyPar: Towards Hybrid Parallelism for Deep Learning Accelerator Array, HPCA 2019. Between two halves
of the devices, a layer exchanges ΔW if it is data-parallel (dp), and its output F' if it is model-parallel (mp: split
over input channels, with partial sums). Between neighbours, with F and E the activations and errors at the border:

    dp → dp  0        dp → mp  ¼F + ¼E        mp → mp  ½E        mp → dp  ½E

The least total is found layer by layer, and again within each half, log₂N times. With dp the halves have half of the
samples, with mp half of the weights. The cost is the sum over all levels of the bytes of all pairs, unit B.

A layer that cannot be split over its input channels, or a batch that no longer halves, takes the other choice.
Each level is optimal for itself; over several levels the total need not be the least (the tests say by how much).
Not verified against the paper: the four transition costs, and which tensors shrink from level to level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, ParallelismError
from baselines.parallelism.operator_costs import OperatorConfig, fits
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare

_STATES = ("dp", "mp")


@dataclass(frozen=True, slots=True)
class HyPar:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="hypar",
        summary="data- or model-parallel per layer, a two-state programme repeated over a binary tree",
        paper="Song et al., HyPar, HPCA 2019",
    )

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """Data or model parallelism per layer and level. Raises: ParallelismError unless devices are a power of two."""
        num_levels = machine.num_devices.bit_length() - 1
        if 1 << num_levels != machine.num_devices:
            raise ParallelismError(f"{machine.num_devices} devices are no power of two; use 2, 4, 8 or 16")
        configs = [OperatorConfig() for _ in layers]
        total = 0.0
        for level in range(num_levels):
            cost, choice = best_level(layers, configs, work)
            total += cost * 2**level
            configs = [halved(config, state) for config, state in zip(configs, choice, strict=True)]
        return ParallelPlan(
            stages=(PlannedStage(0, len(layers), machine.num_devices),),
            splits=tuple(config.splits() for config in configs),
            cost=total,
            unit="B",
        )


def halved(config: OperatorConfig, state: str) -> OperatorConfig:
    """The configuration of a layer after one more level."""
    if state == "dp":
        return OperatorConfig(config.sample * 2, 1, config.channel_in, 1)
    return OperatorConfig(config.sample, 1, config.channel_in * 2, 1)


def best_level(
    layers: Sequence[PlannedLayer], configs: Sequence[OperatorConfig], work: Workshare
) -> tuple[float, tuple[str, ...]]:
    """(bytes between two halves, the choice per layer). Raises: ParallelismError if a layer can take neither."""
    best: dict[str, tuple[float, tuple[str, ...]]] = {}
    for place, (layer, config) in enumerate(zip(layers, configs, strict=True)):
        here: dict[str, tuple[float, tuple[str, ...]]] = {}
        for state in _STATES:
            own = inside_bytes(layer, config, state, work)
            if math.isinf(own):
                continue
            if place == 0:
                here[state] = own, (state,)
                continue
            here[state] = min(
                (cost + between_bytes(layers[place - 1], configs[place - 1], before, state, work) + own, (*path, state))
                for before, (cost, path) in best.items()
            )
        if not here:
            raise ParallelismError(
                f"layer {layer.name!r} can be split neither over {work.micro_batch_size} samples nor over its input "
                "channels any more; use fewer devices or a larger batch"
            )
        best = here
    return min(best.values())


def inside_bytes(layer: PlannedLayer, config: OperatorConfig, state: str, work: Workshare) -> float:
    """What a layer's two halves exchange; infinite where it cannot be halved that way."""
    if not fits(layer, halved(config, state), work) or (state == "mp" and "channel-in" not in layer.extents):
        return math.inf
    if state == "dp":
        return layer.parameter_bytes / config.channel_in
    return layer.output_bytes * work.batch_size / config.sample


def between_bytes(layer: PlannedLayer, config: OperatorConfig, state: str, behind: str, work: Workshare) -> float:
    """What crosses between two halves where `layer` ends and the next one begins."""
    border = layer.output_bytes * work.batch_size / config.sample  # of F and of E alike
    return {("dp", "dp"): 0.0, ("dp", "mp"): border / 2}.get((state, behind), border / 2)
