"""A pipelined job as it is asked for: a schedule, where the chain is cut, how many replicas each rank's stages have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from baselines.parallelism.api import ParallelismError, PipelineSchedule
from baselines.parallelism.catalogue import schedule_of
from baselines.parallelism.plans import PlannedStage, balanced_stages
from models.graph import LayerGraph
from models.graph_building import graph_from_flops, graph_from_profile, graph_of
from models.layer_profile import load_profile
from models.networks import find_network
from models.values import Device, WorkloadSpec
from models.workload import open_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelining:
    """How a job is spread over the ranks of a trial: in stages, each of which holds some layers.

    Attributes:
        schedule: its text, e.g. `dapple` or `gpipe(recompute=True)`.
        cuts: the first layer of each stage but the first. Empty: so that the slowest stage is as fast as it can be.
        replicas: of each pipeline rank, one after the other among the trial's ranks. Empty: one each.

    A step is the job's `accumulate` micro-batches of its workload's batch size, over all replicas together.
    """

    schedule: str = "dapple"
    cuts: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()

    def resolve(self) -> PipelineSchedule:
        """The schedule. Raises: ParallelismError, TextError."""
        return schedule_of(self.schedule)

    def stages(self, workload: WorkloadSpec, world: int) -> tuple[PlannedStage, ...]:
        """The stages of `workload` on `world` ranks. Raises: ParallelismError, WorkloadError."""
        if self.replicas and sum(self.replicas) != world:
            raise ParallelismError(
                f"replicas {self.replicas} are {sum(self.replicas)} ranks, and there are {world}; make them as many"
            )
        # Stages of one rank are replicated together: a rank is one process.
        replicas = self.replicas or (1,) * world
        per_rank = self.resolve().stages_per_rank
        counts = replicas * per_rank
        layers = graph_of_workload(workload).layers
        if not self.cuts:
            return balanced_stages(layers, counts)
        if len(self.cuts) != len(counts) - 1:
            raise ParallelismError(f"{len(self.cuts)} cuts for {len(counts)} stages; give {len(counts) - 1}, or none")
        return tuple(map(PlannedStage, (0, *self.cuts), (*self.cuts, len(layers)), counts))


def num_micro_batches_per_update(schedule: PipelineSchedule, num_micro_batches: int) -> int:
    """How many of a step's micro-batches an update takes. Raises: ParallelismError if they are no whole step."""
    wanted = num_micro_batches if schedule.synchronous else getattr(schedule, "micro_batches_per_step", 1)
    if wanted != num_micro_batches:
        raise ParallelismError(
            f"{schedule.card.name} updates after {wanted} micro-batches and a step has {num_micro_batches}; "
            f"use accumulate={wanted}, with a batch as much larger"
        )
    return num_micro_batches


@cache
def graph_of_workload(workload: WorkloadSpec) -> LayerGraph:
    """The layers that are cut: of the profile in replay, else of the network's own. Raises: WorkloadError."""
    if workload.device is Device.REPLAY:
        return graph_from_profile(load_profile(workload.profile or find_network(workload.network).profile))
    if find_network(workload.network).profile:
        return graph_of(workload.network)
    # Of the data's own images: bytes between stages grow with their area.
    image_size = open_workload(replace(workload, device=Device.CPU)).spec.image_size
    return graph_from_flops(workload.network, sequence_length=workload.sequence_length, image_size=image_size)
