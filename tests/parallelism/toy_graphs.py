"""Graphs of a few layers with small round costs, for planners."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from baselines.parallelism.plans import Machine


@dataclass(frozen=True)
class ToyLayer:
    name: str = "layer"
    forward_s: float = 1.0
    backward_s: float = 2.0
    parameter_bytes: int = 0
    output_bytes: int = 0
    saved_bytes: int = 0
    tied_bytes: int = 0
    extents: Mapping[str, int] = field(default_factory=lambda: {"channel-out": 12, "channel-in": 12})


def toy_graphs(count: int, most_layers: int = 6, seed: int = 0) -> Iterator[tuple[list[ToyLayer], Machine]]:
    """Graphs of every length up to `most_layers` with machines of 1 to 4 devices; costs over three decades."""
    chance = random.Random(seed)
    for index in range(count):
        layers = [
            ToyLayer(
                name=f"layer.{place}",
                forward_s=chance.choice((0.1, 1.0, 3.0)),
                backward_s=chance.choice((0.2, 2.0, 5.0)),
                parameter_bytes=chance.choice((0, 10, 100, 1000)),
                output_bytes=chance.choice((1, 10, 100)),
                extents=chance.choice(({}, {"channel-out": 12, "channel-in": 12}, {"channel-in": 4, "spatial": 8})),
            )
            for place in range(index % most_layers + 1)
        ]
        beta = chance.choice((0.0, 0.001, 0.01, 0.1))
        yield layers, Machine(num_devices=1 + index // most_layers % 4, alpha_s=0.01, beta_s_per_byte=beta)
