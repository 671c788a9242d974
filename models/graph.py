"""What planners of parallelism see of a workload: a chain of layers with times, bytes and dimensions that may be split.

Every network here is a chain at the grain of `models.chain` (a residual block is one layer), so the graph is one too.
Times come from a profile (recorded or derived), from FLOPs alone at a stated speed, or from a network timed live;
`provenance` and `source` say which. Bytes and dimensions are always counted on the network itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from models.layer_profile import ParameterShape, Provenance
from models.values import WorkloadError

BYTES_PER_ELEMENT = 4  # fp32


class Dimension(StrEnum):
    """What a layer may be split over."""

    SAMPLE = "sample"
    CHANNEL_OUT = "channel-out"
    CHANNEL_IN = "channel-in"
    SPATIAL = "spatial"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLayer:
    """One link of a chain.

    Attributes:
        forward_s: seconds per sample, and `backward_s` likewise.
        parameters: what it owns. A tied weight stands in the first layer that has it …
        tied_bytes: … and counts here in every other one.
        output_bytes: what it hands to the next layer, per sample; the gradient that comes back has the same size.
        saved_bytes: what its forward keeps for its backward, per sample, parameters left out.
        extents: how many parts each dimension has at most; a degree must divide it. The sample dimension is not here:
            its extent is the batch.
    """

    name: str
    forward_s: float
    backward_s: float
    parameters: tuple[ParameterShape, ...]
    tied_bytes: int
    output_bytes: int
    saved_bytes: int
    extents: Mapping[str, int]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of its own parameters, float32."""
        return sum(math.prod(parameter.shape) for parameter in self.parameters) * BYTES_PER_ELEMENT


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """The layers of a workload in order of forward. `input_bytes` is one sample's, before the first layer."""

    network: str
    provenance: Provenance
    source: str
    device: str
    sample: str
    input_bytes: int
    layers: tuple[GraphLayer, ...]

    def __post_init__(self) -> None:
        for layer in self.layers:
            if not (0 <= layer.forward_s < math.inf and 0 <= layer.backward_s < math.inf):
                raise WorkloadError(f"layer {layer.name!r} of {self.network!r} has no finite time; record it again")
        if not self.layers:
            raise WorkloadError(f"the graph of {self.network!r} has no layers; give it at least one")

    @property
    def step_s(self) -> float:
        """Forward and backward of one sample on one device."""
        return math.fsum(layer.forward_s + layer.backward_s for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters, tied ones once."""
        return sum(layer.parameter_bytes for layer in self.layers)
