"""What a planner is given and what it answers.

A plan cuts the layers into stages, gives each stage replicas, and each layer of a stage a split. Planners are pure:
`plan(layers, machine, batch)` depends on its arguments alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Protocol, runtime_checkable

from baselines.parallelism.api import ParallelCard, ParallelismError


class PlannedLayer(Protocol):
    """What a planner sees of a layer: times per sample, bytes of its parameters, and bytes per sample.

    `tied_bytes` are those of weights that an earlier layer owns: a stage of its own needs a copy."""

    @property
    def name(self) -> str:
        """The layer's name in its network."""

    @property
    def forward_s(self) -> float:
        """Seconds of forward per sample."""

    @property
    def backward_s(self) -> float:
        """Seconds of backward per sample."""

    @property
    def parameter_bytes(self) -> int:
        """Bytes of its own parameters."""

    @property
    def tied_bytes(self) -> int:
        """Bytes of parameters that an earlier layer owns too."""

    @property
    def output_bytes(self) -> int:
        """Bytes per sample that it hands on."""

    @property
    def saved_bytes(self) -> int:
        """Bytes per sample that its backward needs."""

    @property
    def extents(self) -> Mapping[str, int]:
        """How long each dimension is along which it may be split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The devices that a plan may use: all alike, one per host, each with a full-duplex link into a switch that never
    blocks. A message of n bytes takes α + β·n seconds. `memory_bytes` 0: as much as it takes."""

    num_devices: int
    alpha_s: float
    beta_s_per_byte: float
    memory_bytes: int = 0

    def __post_init__(self) -> None:
        times_are_known = 0 <= self.alpha_s < math.inf and 0 <= self.beta_s_per_byte < math.inf
        if self.num_devices < 1 or not times_are_known or self.memory_bytes < 0:
            raise ParallelismError(f"{self}: use at least one device, and finite times and bytes of 0 or more")

    def message_s(self, num_bytes: float) -> float:
        """A message from one device to another."""
        return self.alpha_s + self.beta_s_per_byte * num_bytes

    def all_reduce_s(self, num_bytes: float, num_devices: int) -> float:
        """A ring's all-reduce: 2(n−1) messages of a share each."""
        return 2 * (num_devices - 1) * self.message_s(num_bytes / num_devices)

    @staticmethod
    def all_reduce_bytes(num_bytes: float, num_devices: int) -> float:
        """What each device of that ring sends."""
        return 2 * (num_devices - 1) * num_bytes / num_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshare:
    """One step: `batch_size` samples in `num_micro_batches` equal micro-batches."""

    batch_size: int
    num_micro_batches: int = 1

    def __post_init__(self) -> None:
        if self.num_micro_batches < 1 or self.batch_size < self.num_micro_batches:
            raise ParallelismError(
                f"a batch of {self.batch_size} samples has no {self.num_micro_batches} micro-batches; use at most "
                f"{max(1, self.batch_size)}, or a larger batch"
            )
        if self.batch_size % self.num_micro_batches:
            raise ParallelismError(
                f"a batch of {self.batch_size} samples does not divide into {self.num_micro_batches} micro-batches; "
                f"use a batch of {self.batch_size // self.num_micro_batches * self.num_micro_batches}"
            )

    @property
    def micro_batch_size(self) -> int:
        """Samples of one micro-batch."""
        return self.batch_size // self.num_micro_batches


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """Layers `first` … `stop`−1 on `num_replicas` devices, each of which takes a slice of every micro-batch. Slices
    differ by one sample at most."""

    first: int
    stop: int
    num_replicas: int = 1


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """A layer in `degree` parts over `dimension`."""

    dimension: str
    degree: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """A planner's answer. `splits`, one per layer, are for plans that partition operators; a pipeline's are empty.

    `cost` is what the planner minimised, in its own unit (`unit`): planners are compared with each other by the step
    that the harness predicts, not by this.
    """

    stages: tuple[PlannedStage, ...]
    splits: tuple[tuple[LayerSplit, ...], ...] = ()
    cost: float
    unit: str

    @property
    def num_devices(self) -> int:
        """Devices that it uses, replicas counted."""
        return sum(stage.num_replicas for stage in self.stages)


@runtime_checkable
class Planner(Protocol):
    """A planner; a frozen dataclass in a file of this folder."""

    card: ClassVar[ParallelCard]

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """Raises: ParallelismError if nothing fits."""
        ...


def check_stages(stages: Sequence[PlannedStage], num_layers: int, micro_batch_size: int) -> None:
    """Stages cover every layer once, in order, and each replica has a sample. Raises: ParallelismError."""
    if len(stages) > num_layers:
        raise ParallelismError(f"{len(stages)} stages for {num_layers} layers; use at most {num_layers} stages")
    place = 0
    for stage in stages:
        if stage.first != place or stage.stop <= stage.first:
            raise ParallelismError(f"{stage} after layer {place}; stages follow each other and have a layer each")
        if stage.num_replicas > micro_batch_size:
            raise ParallelismError(
                f"{stage.num_replicas} replicas for a micro-batch of {micro_batch_size} samples; use at most "
                f"{micro_batch_size}, or a larger batch"
            )
        place = stage.stop
    if place != num_layers:
        raise ParallelismError(f"stages end at layer {place} of {num_layers}; the last one must hold the rest")


def balanced_stages(layers: Sequence[PlannedLayer], counts: Sequence[int]) -> tuple[PlannedStage, ...]:
    """`len(counts)` stages of `counts` replicas each, so that the slowest one is as fast as it can be; of equally good
    cuts, the one whose stages are most alike.

    A dynamic programme over (stages, layers): the slowest stage is exact, likeness a rule of thumb. Raises:
    ParallelismError for more stages than layers.
    """
    num_layers = len(layers)
    if not 1 <= len(counts) <= num_layers:
        raise ParallelismError(f"{len(counts)} stages for {num_layers} layers; use 1 to {num_layers} stages")
    total = [0.0, *accumulate(layer.forward_s + layer.backward_s for layer in layers)]
    best: list[tuple[tuple[float, float], tuple[int, ...]]] = [((0.0, 0.0), ())] * (num_layers + 1)
    for index, count in enumerate(counts):
        found = list(best)
        for stop in range(index + 1, num_layers + 1):
            options = []
            for first in range(index, stop) if index else (0,):
                (slowest_s, squares), cuts = best[first]
                own_s = (total[stop] - total[first]) / count
                options.append(((max(slowest_s, own_s), squares + own_s**2), (*cuts, first)))
            found[stop] = min(options)
        best = found
    cuts = best[num_layers][1]
    return tuple(map(PlannedStage, cuts, (*cuts[1:], num_layers), counts))
