"""PipeDream's planner: stages and replicas with the least time per mini-batch, on servers of several devices.

Paper: Narayanan et al., PipeDream, SOSP 2019, section 3.1; the details are those of the authors' code
(`optimizer_graph_hierarchical.py`, with `activation_compression_ratio` 1). Replicas take whole mini-batches in turn. At
a level of n units (devices of a server, then servers), joined at a bandwidth B, layers i … j on r units take

    T(i … j, r) = ( C(i … j)  +  4(r−1)·w / (r·B·u) ) / r

with C the seconds of a mini-batch on one unit and w the bytes of weights. u is 1; where a pipeline has one stage or
begins, it is the number of devices in a unit, which share that exchange. On m units

    A(i … j, m) = min( T(i … j, m),
                       min over k, r of max( A(i … k, m−r), T(k+1 … j, r), 2·a_k/(r·B), 2·a_j/(r·B) ) )

where a_k are the bytes of layer k's output, and the term of a_j is left out for the last layer. C of the second level
is A of the first one on all devices of a server. The plan uses all devices, and its cost is A of all layers.

Memory: of every stage, the weights and activations that are stashed for the mini-batches behind it must fit: (w + all
activations of the stage) · ⌈(units behind it)/r⌉ at each level. The last stage stashes nothing, so one stage on all
devices always fits, by this rule.

Defaults: one level (`server_devices` 1). `server_speed` is the bandwidth within a server over that of the network.
A mini-batch is one micro-batch of the step.
The rule fills all devices and knows no start-up time, so on a slow network its plan may take longer than one device or
data parallelism, which are not compared: `plan-parallel` shows those beside it.
Differs from the authors' code: a chain of layers, not any graph, and what backward needs (`saved_bytes`) stands for the
activations of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.parallelism.api import ParallelCard, ParallelismError, require_positive
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare


@dataclass(frozen=True, slots=True)
class PipeDreamPlanner:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="pipedream-planner",
        summary="the authors' dynamic programme over stages and replicas, within servers and between them",
        paper="Narayanan et al., PipeDream, SOSP 2019",
    )
    server_devices: int = 1
    server_speed: float = 1.0

    def __post_init__(self) -> None:
        require_positive(server_devices=self.server_devices)
        if not 0 < self.server_speed < math.inf:
            raise ParallelismError(f"server_speed is {self.server_speed}; use a finite ratio above 0, e.g. 10")

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """The stages of least cost on all devices. Raises: ParallelismError if servers do not divide the devices."""
        num_servers, left = divmod(machine.num_devices, self.server_devices)
        if left:
            raise ParallelismError(
                f"{machine.num_devices} devices are no whole number of servers of {self.server_devices}; use a multiple"
            )
        beta_s = machine.beta_s_per_byte
        chain = _Chain(layers, work.micro_batch_size, machine.memory_bytes or math.inf)
        within = _Level(chain, chain.compute_s, self.server_devices, 1, beta_s / self.server_speed)
        between = _Level(chain, within.cost_s[..., -1], num_servers, self.server_devices, beta_s, num_firsts=1)
        stages = tuple(
            PlannedStage(inner.first, inner.stop, inner.num_replicas * outer.num_replicas)
            for outer in between.stages(0, len(layers))
            for inner in within.stages(outer.first, outer.stop)
        )
        return ParallelPlan(stages=stages, cost=float(between.cost_s[0, -1, -1]), unit="s per mini-batch")


class _Chain:
    """Sums over layers first … stop−1 for a mini-batch, as matrices [first, stop]; no layers take for ever."""

    def __init__(self, layers: Sequence[PlannedLayer], num_samples: int, memory_bytes: float) -> None:
        self.memory_bytes = memory_bytes
        self.output_bytes = [*(num_samples * layer.output_bytes for layer in layers[:-1]), 0]  # the last sends nothing
        computed_s = _sums(num_samples * (layer.forward_s + layer.backward_s) for layer in layers)
        self.compute_s = computed_s.masked_fill(torch.ones_like(computed_s).tril().bool(), math.inf)
        self.weight_bytes = _sums(layer.parameter_bytes for layer in layers)
        self.stash_bytes = self.weight_bytes + _sums(num_samples * layer.saved_bytes for layer in layers)


def _sums(values: Iterable[float]) -> Tensor:
    total = torch.tensor([0.0, *values], dtype=torch.float64).cumsum(0)
    return total - total.unsqueeze(1)


class _Level:
    """The programme over `num_units` units of `unit_devices` each.

    `compute_s` [first, stop] is a mini-batch's time on one unit, `cost_s` [first, stop, units − 1] the least time of a
    pipeline. `num_firsts`: how many first layers are wanted, all by default.
    """

    def __init__(
        self,
        chain: _Chain,
        compute_s: Tensor,
        num_units: int,
        unit_devices: int,
        beta_s_per_byte: float,
        num_firsts: int | None = None,
    ) -> None:
        self._chain, self._compute_s, self._beta_s = chain, compute_s, beta_s_per_byte
        self._counts = torch.arange(1, num_units + 1)
        rows = slice(num_firsts)
        whole_s = self._stage_s(compute_s[rows, :, None], chain.weight_bytes[rows, :, None] / unit_devices)
        stashed = chain.stash_bytes[rows, :, None] * _num_stashed(self._counts, num_units - self._counts)
        self.cost_s = whole_s.masked_fill(stashed > chain.memory_bytes, math.inf)
        self._replicas = self._counts.expand_as(self.cost_s).clone()
        self._cuts = torch.zeros_like(self._replicas)  # 0: one stage
        for stop in range(2, len(compute_s)) if num_units > 1 else ():
            for cut in range(1, stop):
                self._cut(cut, stop)

    def _cut(self, cut: int, stop: int) -> None:
        """Take pipelines of layers up to `stop` whose last stage starts with layer `cut`, where they are faster."""
        counts, chain = self._counts, self._chain
        crossing_bytes = max(chain.output_bytes[cut - 1], chain.output_bytes[stop - 1])
        last_s = self._stage_s(self._compute_s[cut, stop], chain.weight_bytes[cut, stop])
        last_s = last_s.maximum(2 * self._beta_s * crossing_bytes / counts)  # [replicas]
        before_s = torch.nn.functional.pad(self.cost_s[:, cut], (1, 0), value=math.inf)
        before_s = before_s[:, (counts.unsqueeze(1) - counts).clamp(min=0)]  # [first, units, replicas]
        stashed = chain.stash_bytes[cut, stop] * _num_stashed(counts, (len(counts) - counts).unsqueeze(1))
        least_s, place = before_s.maximum(last_s).masked_fill(stashed > chain.memory_bytes, math.inf).min(-1)
        better = least_s < self.cost_s[:, stop]
        self.cost_s[:, stop] = least_s.where(better, self.cost_s[:, stop])
        self._replicas[:, stop] = (place + 1).where(better, self._replicas[:, stop])
        self._cuts[:, stop].masked_fill_(better, cut)

    def _stage_s(self, compute_s: Tensor, weight_bytes: Tensor) -> Tensor:
        """T on 1, 2, … units, in a last dimension."""
        sum_s = 4 * self._beta_s * weight_bytes * (self._counts - 1) / self._counts
        return (compute_s + sum_s) / self._counts

    def stages(self, first: int, stop: int) -> Iterator[PlannedStage]:
        """The fastest pipeline of these layers on all units; replicas are units."""
        num_units, found = len(self._counts), list[PlannedStage]()
        while stop > first:
            place = first, stop, num_units - 1
            cut, replicas = int(self._cuts[place]) or first, int(self._replicas[place])
            found.append(PlannedStage(cut, stop, replicas))
            stop, num_units = cut, num_units - replicas
        return reversed(found)


def _num_stashed(replicas: Tensor, units_behind: Tensor) -> Tensor:
    """⌈behind / replicas⌉ mini-batches."""
    return -(-units_behind // replicas)
