"""A job whose operators are split, as it is asked for: a planner, and what its plan comes to on a trial's link."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.catalogue import planner_of
from baselines.parallelism.operator_costs import OperatorConfig, total_s
from baselines.parallelism.plans import Machine, ParallelPlan, Planner, Workshare
from baselines.parallelism.split_programs import SplitInstruction, split_program
from harness.parallel.placement import graph_of_workload
from harness.parallel.planning import config_of, operator_memory_bytes
from models.values import WorkloadSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """How the operators of a job are spread over all ranks of a trial.

    Attributes:
        planner: its text, e.g. `hypar` or `mesh-tensorflow(mesh='rows=2,columns=2', layout='sample=rows')`. It plans
            for the trial's ranks, α and rate.
        overlap: whether sums of gradients hide behind backward.

    A step is one batch of the workload's size over all ranks together.
    """

    planner: str = "data-parallel"
    overlap: bool = True

    def resolve(self) -> Planner:
        """The planner. Raises: ParallelismError, TextError."""
        return planner_of(self.planner)

    def on(self, workload: WorkloadSpec, machine: Machine) -> SplitPlan:
        """The plan on these devices. Raises: ParallelismError for a plan of stages, or none; TextError."""
        return _planned(self.planner, workload, machine)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """A configuration per layer. `planned_s` is the step as planners count it: without overlap. `memory_bytes` are one
    device's, and `program` its step."""

    configs: tuple[OperatorConfig, ...]
    planned_s: float
    memory_bytes: int
    program: tuple[SplitInstruction, ...]

    @property
    def texts(self) -> tuple[str, ...]:
        """Of each layer, such as `sample=4 channel-out=2`; `whole` where all devices compute all of it."""
        return tuple(
            " ".join(f"{split.dimension}={split.degree}" for split in config.splits()) or "whole"
            for config in self.configs
        )


@cache
def _planned(planner: str, workload: WorkloadSpec, machine: Machine) -> SplitPlan:
    # A search of seconds, which a trial's checks, its processes and its record all ask for.
    graph, work = graph_of_workload(workload), Workshare(batch_size=workload.batch_size)
    plan = planner_of(planner).plan(graph.layers, machine, work)
    configs = _configs_of(planner, plan)
    return SplitPlan(
        configs=configs,
        planned_s=total_s(graph.layers, configs, machine, work, graph.input_bytes),
        memory_bytes=operator_memory_bytes(graph, configs, work),
        program=split_program(graph.layers, configs, work, graph.input_bytes),
    )


def _configs_of(planner: str, plan: ParallelPlan) -> tuple[OperatorConfig, ...]:
    """Replicas of the one stage where nothing is split are a split over samples."""
    if plan.splits:
        return tuple(config_of(splits) for splits in plan.splits)
    if len(plan.stages) > 1:
        raise ParallelismError(
            f"{planner} plans {len(plan.stages)} stages; give the job pipelining with these cuts and replicas, or use "
            "a planner of splits such as tofu"
        )
    (stage,) = plan.stages
    return (OperatorConfig(sample=stage.num_replicas),) * stage.stop
