"""Stanza: convolutions replicated on most devices, the fully connected layers on a few of their own.

Paper: Wu et al., Stanza: Layer Separation for Distributed Training in Deep Learning, 2018 (arXiv 1812.10624). In
networks such as VGG and AlexNet the convolutions compute and the fully connected layers hold the parameters. Apart from
each other, convolutions' workers sum few gradients, and instead of the others' parameters only the boundary's
activations travel. With c convolution and f fully connected devices of n = c + f and a mini-batch of B samples, a step
is

    B·t_conv/c + B·t_fc/f + 2·(boundary's bytes of B/f samples) + the longer of both sides' all-reduces

and the number f is the one that makes it shortest, 1 to n/2 where it divides the batch.

Differs from the paper: its workers of fully connected layers are those of one worker in most cases; here f is searched.
Not verified against the paper's text: how it chooses f.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.parallelism.api import ParallelCard, ParallelismError
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedLayer, PlannedStage, Workshare

_ROWS = "spatial"


@dataclass(frozen=True, slots=True)
class Stanza:
    card: ClassVar[ParallelCard] = ParallelCard(
        name="stanza",
        summary="convolutions replicated, fully connected layers on a few devices of their own",
        paper="Wu et al., Stanza, arXiv 1812.10624, 2018",
    )

    def plan(self, layers: Sequence[PlannedLayer], machine: Machine, work: Workshare) -> ParallelPlan:
        """Two stages; the cost is the step in seconds. Raises: ParallelismError for a network of another kind."""
        boundary = first_connected(layers)
        options = [(step_s(layers, boundary, few, machine, work), few) for few in _fitting(machine.num_devices, work)]
        if not options:
            raise ParallelismError(
                f"{machine.num_devices} devices have no two groups that divide {work.micro_batch_size} samples; "
                "use a batch with more divisors"
            )
        cost, few = min(options)
        stages = (PlannedStage(0, boundary, machine.num_devices - few), PlannedStage(boundary, len(layers), few))
        return ParallelPlan(stages=stages, cost=cost, unit="s")


def first_connected(layers: Sequence[PlannedLayer]) -> int:
    """The first layer without rows behind those that have them. Raises: ParallelismError where there is none."""
    has_rows = [layer.extents.get(_ROWS, 0) > 0 for layer in layers]
    behind = len(layers) - next((place for place, rows in enumerate(reversed(has_rows)) if rows), len(layers))
    if not 0 < behind < len(layers):
        raise ParallelismError(
            "stanza sets fully connected layers behind convolutions apart, and this network has none; use it for "
            "vgg16, or another planner"
        )
    return behind


def step_s(layers: Sequence[PlannedLayer], boundary: int, few: int, machine: Machine, work: Workshare) -> float:
    """A step with `few` devices for the layers from `boundary` on, one side after the other."""
    many = machine.num_devices - few
    sums_s, compute_s = [], 0.0
    for part, count in ((layers[:boundary], many), (layers[boundary:], few)):
        compute_s += work.batch_size / count * sum(layer.forward_s + layer.backward_s for layer in part)
        sums_s.append(machine.all_reduce_s(sum(layer.parameter_bytes for layer in part), count))
    crossing_bytes = work.batch_size / min(few, many) * layers[boundary - 1].output_bytes
    return compute_s + 2 * machine.message_s(crossing_bytes) + max(sums_s)


def _fitting(num_devices: int, work: Workshare) -> Iterator[int]:
    for few in range(1, num_devices // 2 + 1):
        if work.micro_batch_size % few == 0 and work.micro_batch_size % (num_devices - few) == 0:
            yield few
