"""The planners side by side: each one's plan for a workload, its predicted step and its memory per device."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baselines.parallelism.api import Backward, Forward, ParallelismError, PipelineSchedule, Recompute
from baselines.parallelism.catalogue import planner_of, planners
from baselines.parallelism.dapple import Dapple
from baselines.parallelism.operator_costs import OperatorConfig, total_s
from baselines.parallelism.pipedream import PipeDream
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedStage, Planner, Workshare
from baselines.parallelism.programs import program_of
from harness.parallel.clock import PipelineTimeline, StageCosts, costs_of, run_on_clock
from models.graph import LayerGraph

_COPIES = 3  # a weight, its gradient, its momentum
_SCHEDULES: dict[str, PipelineSchedule] = dict.fromkeys(("pipedream-planner", "bottleneck-planner"), PipeDream())
_ROUNDS = 4  # steps that an asynchronous schedule runs for, to see its steady state


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForecast:
    """A planner's plan and what it comes to; `refused` instead says why there is none.

    `step_s` is of one batch; `memory_bytes` of the device that holds most; `bubble` of pipelines, their idle share.
    """

    planner: str
    schedule: str = ""
    plan: ParallelPlan | None = None
    step_s: float = 0.0
    memory_bytes: int = 0
    bubble: float = 0.0
    refused: str = ""


def forecast(planner: Planner, graph: LayerGraph, machine: Machine, work: Workshare) -> PlanForecast:
    """Plan, then predict: pipelines on the virtual clock, partitioned operators by their costs.

    Where steps overlap, a whole batch goes through the pipeline as one mini-batch, for it is applied by itself.
    """
    name = planner.card.name
    schedule = _SCHEDULES.get(name, Dapple())
    if not schedule.synchronous:
        work = Workshare(batch_size=work.batch_size)
    try:
        plan = planner.plan(graph.layers, machine, work)
    except ParallelismError as error:
        return PlanForecast(planner=name, refused=str(error))
    if plan.splits:
        configs = [config_of(splits) for splits in plan.splits]
        step_s = total_s(graph.layers, configs, machine, work, graph.input_bytes)
        memory = operator_memory_bytes(graph, configs, work)
        return PlanForecast(planner=name, schedule="none", plan=plan, step_s=step_s, memory_bytes=memory)
    timeline, step_s = pipeline_step(plan.stages, schedule, graph, machine, work)
    return PlanForecast(
        planner=name,
        schedule=schedule.card.name,
        plan=plan,
        step_s=step_s,
        memory_bytes=max(timeline.peak_bytes),
        bubble=timeline.bubble,
    )


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


def forecasts(
    graph: LayerGraph, machine: Machine, work: Workshare, texts: Sequence[str] = ()
) -> tuple[PlanForecast, ...]:
    """Of the planners that `texts` name, by default of every one with its defaults: fastest first, refusals last.

    Raises: ParallelismError or TextError for a text that names none.
    """
    asked = [planner_of(text) for text in texts or planners()]
    found = [forecast(planner, graph, machine, work) for planner in asked]
    return tuple(sorted(found, key=lambda entry: (bool(entry.refused), entry.step_s)))


def choose(found: Sequence[PlanForecast], memory_bytes: int) -> PlanForecast:
    """The fastest plan that fits. `memory_bytes` 0: all do.

    Raises: ParallelismError saying how much the smallest one lacks, or that every planner refused.
    """
    planned = [entry for entry in found if entry.plan is not None]
    if not planned:
        raise ParallelismError("; ".join(f"{entry.planner}: {entry.refused}" for entry in found))
    fitting = [entry for entry in planned if not memory_bytes or entry.memory_bytes <= memory_bytes]
    if not fitting:
        least = min(planned, key=lambda entry: entry.memory_bytes)
        lacking = least.memory_bytes - memory_bytes
        raise ParallelismError(
            f"no plan fits into {memory_bytes / 1e9:.3g} GB per device: the smallest, {least.planner}'s, lacks "
            f"{lacking / 1e9:.3g} GB; use at least {least.memory_bytes / 1e9:.3g} GB, a smaller batch or more hosts"
        )
    return min(fitting, key=lambda entry: entry.step_s)
