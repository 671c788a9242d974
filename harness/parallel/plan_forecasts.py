"""The planners side by side: each one's plan for a workload, its predicted step and its memory per device."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from baselines.parallelism.api import ParallelismError, PipelineSchedule
from baselines.parallelism.catalogue import planner_of, planners
from baselines.parallelism.dapple import Dapple
from baselines.parallelism.operator_costs import total_s
from baselines.parallelism.pipedream import PipeDream
from baselines.parallelism.planners.data_parallel import DataParallel
from baselines.parallelism.planners.one_device import OneDevice
from baselines.parallelism.plans import Machine, ParallelPlan, PlannedStage, Planner, Workshare
from baselines.strategy import parse_strategy
from harness.parallel.planning import config_of, operator_memory_bytes, pipeline_step
from harness.predict.costs import given_costs
from harness.predict.layers import Layers, layers_of, plain_layers
from harness.predict.step import predict_step
from models.graph import BYTES_PER_ELEMENT, Dimension, LayerGraph
from models.layer_profile import load_profile
from models.networks import find_network

_SCHEDULES: dict[str, PipelineSchedule] = dict.fromkeys(("pipedream-planner", "bottleneck-planner"), PipeDream())


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanForecast:
    """A planner's plan and what it comes to; `refused` instead says why there is none.

    `step_s` is of one batch; `memory_bytes` of the device that holds most; `bubble` of pipelines, their idle share.
    `stale`: a gradient is of older weights than those it updates, so that steps learn less than a synchronous one.
    """

    planner: str
    schedule: str = ""
    plan: ParallelPlan | None = None
    step_s: float = 0.0
    memory_bytes: int = 0
    bubble: float = 0.0
    stale: bool = False
    refused: str = ""

    @property
    def rank(self) -> tuple[bool, bool, float, int, int]:
        """What is better comes first: fresh weights, a shorter step, and of equal steps fewer parts and less memory."""
        parts = len(self.plan.stages) + bool(self.plan.splits) if self.plan is not None else 0
        return bool(self.refused), self.stale, float(f"{self.step_s:.6g}"), parts, self.memory_bytes


def forecast(planner: Planner, graph: LayerGraph, machine: Machine, work: Workshare) -> PlanForecast:
    """Plan, then predict: plain data parallelism as `predict` does, pipelines on the clock, operators by their costs.

    Where steps overlap, a whole batch goes through the pipeline as one mini-batch, for it is applied by itself.
    """
    name = planner.card.name
    schedule = _SCHEDULES.get(name, Dapple())
    given = work
    if not schedule.synchronous:
        work = Workshare(batch_size=work.batch_size)
    try:
        plan = planner.plan(graph.layers, machine, work)
    except ParallelismError as error:
        return PlanForecast(planner=name, refused=str(error))
    if replicas := plain_replicas(plan):
        return data_parallel(name, plan, replicas, graph, machine, given)
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
        stale=not schedule.synchronous,
    )


def plain_replicas(plan: ParallelPlan) -> int:
    """On how many devices a plan keeps all layers, each with its share of the samples; 0 for any other plan."""
    if not plan.splits:
        return plan.stages[0].num_replicas if len(plan.stages) == 1 else 0
    degrees = {split.degree for splits in plan.splits for split in splits}
    alike = all(len(splits) == 1 and splits[0].dimension == Dimension.SAMPLE for splits in plan.splits)
    return degrees.pop() if alike and len(degrees) == 1 else 0


def data_parallel(
    name: str, plan: ParallelPlan, replicas: int, graph: LayerGraph, machine: Machine, work: Workshare
) -> PlanForecast:
    """The step of `predict` for `fixed-buckets`: messages overlap with backward, α is of a ring step.

    A device takes its share at once; in the pipeline's micro-batches where it would otherwise not fit.
    """
    stages = (PlannedStage(0, len(graph.layers), replicas),)
    costs = given_costs(replicas, alpha_s=machine.alpha_s, beta_s_per_byte=machine.beta_s_per_byte)
    found: list[PlanForecast] = []
    for count in (1, work.num_micro_batches):
        share = Workshare(batch_size=work.batch_size, num_micro_batches=count)
        memory_bytes = max(pipeline_step(stages, Dapple(), graph, machine, share)[0].peak_bytes)
        layers = layers_of_graph(graph, math.ceil(share.micro_batch_size / replicas))
        step_s = predict_step(layers, parse_strategy("fixed-buckets"), costs, num_micro_batches=count).step_s
        schedule = "overlap" if replicas > 1 else "none"
        found.append(PlanForecast(planner=name, schedule=schedule, plan=plan, step_s=step_s, memory_bytes=memory_bytes))
        if not 0 < machine.memory_bytes < memory_bytes:
            break
    return min(found, key=lambda entry: (_is_too_much(entry, machine.memory_bytes), entry.step_s))


def _is_too_much(entry: PlanForecast, memory_bytes: int) -> bool:
    return 0 < memory_bytes < entry.memory_bytes


def layers_of_graph(graph: LayerGraph, num_samples: int) -> Layers:
    """What a device computes for `num_samples`: the layers of the profile that the graph's times are from, else its
    own."""
    name = find_network(graph.network).profile
    profile = load_profile(name) if name else None
    if profile is not None and profile.source == graph.source:
        return layers_of(profile, time_scale=num_samples / profile.batch_size)
    return plain_layers(
        [num_samples * layer.forward_s for layer in graph.layers],
        [num_samples * layer.backward_s for layer in graph.layers],
        [layer.parameter_bytes // BYTES_PER_ELEMENT for layer in graph.layers],
    )


def forecasts(
    graph: LayerGraph, machine: Machine, work: Workshare, texts: Sequence[str] = ()
) -> tuple[PlanForecast, ...]:
    """Of the planners that `texts` name, by default of every one with its defaults: fastest first, then those with
    stale weights, refusals last. The planners of this benchmark also have the nulls among their candidates.

    Raises: ParallelismError or TextError for a text that names none.
    """
    asked = [planner_of(text) for text in texts or planners()]
    found = [forecast(planner, graph, machine, work) for planner in asked]
    nulls = [forecast(null, graph, machine, work) for null in (OneDevice(), DataParallel())]
    names = {null.planner for null in nulls}
    for place, (planner, own) in enumerate(zip(asked, found, strict=True)):
        if planner.card.paper == "null" and own.planner not in names and not own.refused:
            candidates = [own, *(dataclasses.replace(null, planner=own.planner) for null in nulls if not null.refused)]
            found[place] = min(
                candidates, key=lambda entry: (_is_too_much(entry, machine.memory_bytes), entry.rank[2:])
            )
    # Of equal plans the null's name is the simplest.
    return tuple(sorted(found, key=lambda entry: (*entry.rank, entry.planner not in names)))


def choose(found: Sequence[PlanForecast], memory_bytes: int) -> PlanForecast:
    """The fastest plan that fits, of those with stale weights only where no other does. `memory_bytes` 0: all do.

    Raises: ParallelismError saying how much the smallest one lacks, or that every planner refused.
    """
    planned = [entry for entry in found if entry.plan is not None]
    if not planned:
        raise ParallelismError("; ".join(f"{entry.planner}: {entry.refused}" for entry in found))
    fitting = [entry for entry in planned if not _is_too_much(entry, memory_bytes)]
    if not fitting:
        least = min(planned, key=lambda entry: entry.memory_bytes)
        lacking = least.memory_bytes - memory_bytes
        raise ParallelismError(
            f"no plan fits into {memory_bytes / 1e9:.3g} GB per device: the smallest, {least.planner}'s, lacks "
            f"{lacking / 1e9:.3g} GB; use at least {least.memory_bytes / 1e9:.3g} GB, a smaller batch or more hosts"
        )
    return min(fitting, key=lambda entry: entry.rank)
