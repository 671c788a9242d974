"""Mesh-TensorFlow: the devices form a mesh with named dimensions, and a layout says which tensor dimension each splits.

Paper: Shazeer et al., Mesh-TensorFlow: Deep Learning for Supercomputers, NeurIPS 2018. A layout is a partial map from
tensor dimensions to mesh dimensions, the same for all tensors of a program; no tensor may have two dimensions on one
mesh dimension. `mesh` is "rows=4,columns=2" and `layout` "sample=rows,channel-out=columns". Here a layer's dimensions
are `sample`, `channel-out`, `channel-in` and `spatial`; a layer that has not a dimension has it whole on all devices of
that mesh dimension. The default is data parallelism, "sample" over all devices.

The layout is the user's: nothing is searched. The cost is that of `baselines.parallelism.operator_costs`.
Differs from the paper: a layer whose extent does not divide has that dimension whole too, where the paper's layout is
illegal. There every dimension has a name; here all layers share four, and with `channel-out` in 4 parts BERT's head of
2 channels and GPT-2's of 50,257 could not be laid out. The paper splits single einsums, where a layer here is a link of
the chain; a Transformer's hidden dimension is thus the heads of its attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, ParallelismError
from baselines.parallelism.operator_costs import OperatorConfig, fits, total_s
from baselines.parallelism.planners.flexflow import plan_of
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, Workshare

_DIMENSIONS = ("sample", "channel-out", "channel-in", "spatial")


@dataclass(frozen=True, slots=True)
class MeshTensorFlow:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="mesh-tensorflow",
        summary="a layout given by names: which tensor dimension each dimension of a mesh of devices splits",
        paper="Shazeer et al., Mesh-TensorFlow, NeurIPS 2018",
    )
    mesh: str = ""
    layout: str = ""

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """One stage, each layer split as the layout says; the cost is the step in seconds. Raises: ParallelismError."""
        degrees = self._degrees(machine.num_devices)
        configs = [_config(layer, degrees, work) for layer in layers]
        return plan_of(configs, total_s(layers, configs, machine, work), machine)

    def _degrees(self, num_devices: int) -> Mapping[str, int]:
        """How many parts each tensor dimension is cut into. Raises: ParallelismError for what is no layout."""
        if not self.mesh and not self.layout:
            return {"sample": num_devices}
        sizes = {name: _size(name, text) for name, text in _pairs(self.mesh).items()}
        total = 1
        for size in sizes.values():
            total *= size
        if total != num_devices:
            raise ParallelismError(f"mesh {self.mesh!r} has {total} devices, and there are {num_devices}; use them all")
        found: dict[str, int] = {}
        taken: set[str] = set()
        for dimension, over in _pairs(self.layout).items():
            if dimension not in _DIMENSIONS or over not in sizes or over in taken:
                raise ParallelismError(
                    f"layout {self.layout!r}: {dimension}={over}; map each of {', '.join(_DIMENSIONS)} to one of "
                    f"{', '.join(sizes) or 'a mesh'} at most, and each of those once"
                )
            taken.add(over)
            found[dimension] = sizes[over]
        return found


def _config(layer: PlannedLayer, degrees: Mapping[str, int], work: Workshare) -> OperatorConfig:
    """The layer's part of the layout: without the dimensions that it has not, or that do not divide."""
    config = OperatorConfig()
    for dimension, degree in degrees.items():
        if dimension != "sample" and not layer.extents.get(dimension):
            continue
        known = {name.replace("-", "_"): own for name, own in config.degrees().items()}
        wanted = OperatorConfig(**{**known, dimension.replace("-", "_"): degree})
        config = wanted if fits(layer, wanted, work) else config
    return config


def _pairs(text: str) -> dict[str, str]:
    found = {}
    for entry in filter(None, text.split(",")):
        name, equals, value = entry.partition("=")
        if not equals or not value.strip():
            raise ParallelismError(f"{entry!r} is no name=value; write rows=4,columns=2 and sample=rows")
        if name.strip() in found:
            raise ParallelismError(f"{name.strip()} is given twice in {text!r}; give it once")
        found[name.strip()] = value.strip()
    return found


def _size(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ParallelismError(f"mesh dimension {name}={text} has no size; write a number of devices")
    return int(text)
