"""What a plan comes to: a pipeline on the virtual clock, and the memory of partitioned operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from baselines.parallelism.api import Backward, Forward, PipelineSchedule, Recompute
from baselines.parallelism.operator_costs import OperatorConfig
from baselines.parallelism.plans import Machine, PlannedStage, Workshare
from baselines.parallelism.programs import program_of
from harness.parallel.clock import PipelineTimeline, StageCosts, costs_of, run_on_clock
from models.graph import LayerGraph

_COPIES = 3  # a weight, its gradient, its momentum
_ROUNDS = 4  # steps that an asynchronous schedule runs for, to see its steady state


def pipeline_step(
    stages: Sequence[PlannedStage], schedule: PipelineSchedule, graph: LayerGraph, machine: Machine, work: Workshare
) -> tuple[PipelineTimeline, float]:
    """(timeline, seconds per step). Where steps overlap, a step is what one more takes once the pipeline is full."""
    costs, num_ranks = stage_costs(stages, graph, machine, work), len(stages) // schedule.stages_per_rank
    if schedule.synchronous:
        timeline = run_on_clock(program_of(schedule, num_ranks, work.num_micro_batches), costs, machine)
        return timeline, timeline.step_s
    short, long = (
        run_on_clock(program_of(schedule, num_ranks, rounds * work.num_micro_batches), costs, machine)
        # Two lengths: their difference holds neither the pipeline's filling nor its draining.
        for rounds in (_ROUNDS, 2 * _ROUNDS)
    )
    return long, (long.step_s - short.step_s) / _ROUNDS


def busy_per_step(timeline: PipelineTimeline, schedule: PipelineSchedule) -> tuple[float, ...]:
    """Of a timeline of `pipeline_step`: seconds in which each pipeline rank is in a pass, per step. Sums of gradients,
    which the clock counts to the update, are no computation."""
    num_steps = 1 if schedule.synchronous else 2 * _ROUNDS
    busy_s = [0.0] * len(timeline.busy_s)
    for span in timeline.spans:
        if isinstance(span.instruction, Forward | Recompute | Backward):
            busy_s[span.rank] += span.end_s - span.start_s
    return tuple(total_s / num_steps for total_s in busy_s)


def stage_costs(
    stages: Sequence[PlannedStage], graph: LayerGraph, machine: Machine, work: Workshare
) -> tuple[StageCosts, ...]:
    """Of each stage, the sums of tied weights' gradients included."""
    return _with_tied_sums(costs_of(graph.layers, stages, machine, work, graph.input_bytes), stages, graph, machine)


def _with_tied_sums(
    costs: Sequence[StageCosts], stages: Sequence[PlannedStage], graph: LayerGraph, machine: Machine
) -> tuple[StageCosts, ...]:
    """A weight that an earlier stage owns too has its gradient summed between the two before they update."""
    # Both holders wait for the sum before they update, as the executor does.
    found = list(costs)
    for index, stage in enumerate(stages):
        shared = sum(layer.tied_bytes for layer in graph.layers[stage.first : stage.stop])
        if index and shared:
            for place in (0, index):  # tied weights here are those of embeddings, which stand in the first stage
                update_s = found[place].update_s + machine.all_reduce_s(shared, 2)
                sum_bytes = found[place].sum_bytes + machine.all_reduce_bytes(shared, 2)
                found[place] = dataclasses.replace(found[place], update_s=update_s, sum_bytes=sum_bytes)
    return tuple(found)


def config_of(splits: Sequence[Any]) -> OperatorConfig:
    """The configuration whose `splits()` these are."""
    return OperatorConfig(**{split.dimension.replace("-", "_"): split.degree for split in splits})


def operator_memory_bytes(graph: LayerGraph, configs: Sequence[OperatorConfig], work: Workshare) -> int:
    """Weights are split over channels, activations over samples and rows; all of a step's activations are held."""
    weights = sum(
        layer.parameter_bytes / (config.channel_out * config.channel_in)
        for layer, config in zip(graph.layers, configs, strict=True)
    )
    activations = sum(
        layer.saved_bytes * work.batch_size / (config.sample * config.spatial)
        for layer, config in zip(graph.layers, configs, strict=True)
    )
    return round(_COPIES * weights + activations)
