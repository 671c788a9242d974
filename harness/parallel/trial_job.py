"""A pipelined job of a trial as values that run: its workload as a chain, its stages, its micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch import nn

from baselines.parallelism.api import ParallelismError
from baselines.parallelism.plans import Workshare
from harness.parallel.clock import StageCosts
from harness.parallel.pipeline import PipelineJob
from harness.parallel.placement import Pipelining, graph_of_workload
from harness.parallel.planning import stage_costs
from harness.parallel.stages import IGNORED, MicroBatch
from harness.trial import Job, Trial
from models.device import VirtualDevice
from models.replay import ReplayWorkload
from models.replay_chain import ReplayChain
from models.values import Device, WorkloadSpec
from models.workload import Workload, open_workload


@dataclass(frozen=True, slots=True)
class OpenedJob:
    """What a rank of the job needs; all ranks open it alike."""

    workload: Workload
    model: nn.Module
    pipeline: PipelineJob
    num_micro_batches: int

    def steps(self, seed: int) -> Iterator[tuple[MicroBatch, ...]]:
        """Endless steps, each of equal micro-batches."""
        batches = self.workload.batches(rank=0, world=1, seed=seed)
        while True:
            yield _step_of(list(islice(batches, self.num_micro_batches)))


def _step_of(batches: Sequence[tuple[tuple[torch.Tensor, ...], torch.Tensor]]) -> tuple[MicroBatch, ...]:
    inputs = [own[0][0] for own in batches]
    # A replayed batch has no targets: its inputs are what the loss compares with.
    replayed = all(not own[1].numel() for own in batches)
    targets = [torch.zeros(len(x)) for x in inputs] if replayed else [own[1] for own in batches]
    # The mean is over the whole step, so that unequal numbers of masked words weigh as in one large batch.
    num_targets = sum(int((own != IGNORED).sum()) for own in targets)
    return tuple(MicroBatch(x, own, num_targets) for x, own in zip(inputs, targets, strict=True))


def pipelining_of(job: Job) -> Pipelining:
    """The job's own. Raises: ParallelismError if it has none."""
    if job.pipelining is None:
        raise ParallelismError(f"job {job.name} is no pipeline; give it pipelining")
    return job.pipelining


def open_job(trial: Trial, number: int, device_socket: str = "") -> OpenedJob:
    """Open job `number` of `trial`; a replayed one on the host's shared device, if there is one.

    Raises: ParallelismError, WorkloadError.
    """
    job = trial.jobs[number]
    asked, spec = pipelining_of(job), job.workload
    device = shared_device(spec, device_socket)
    workload = open_workload(spec, device=device)
    pipeline = PipelineJob(
        network=spec.network,
        stages=asked.stages(spec, trial.world),
        schedule=asked.resolve(),
        make_optimizer=job.resolve().optimizer.build,
        seed=trial.seed,
        strategy=job.resolve(),
    )
    return OpenedJob(workload, _model_of(workload, spec, trial.seed), pipeline, job.accumulate)


def shared_device(spec: WorkloadSpec, socket: str) -> VirtualDevice | None:
    """The device of the host behind `socket`, where a replayed job shares one."""
    return VirtualDevice.connect(Path(socket)) if socket and spec.device is Device.REPLAY else None


def _model_of(workload: Workload, spec: WorkloadSpec, seed: int) -> nn.Module:
    if isinstance(workload, ReplayWorkload):
        return ReplayChain(graph_of_workload(spec), workload.device, size_scale=spec.size_scale, seed=seed)
    return workload.build_model(seed)


def costs_of_job(trial: Trial, number: int) -> tuple[StageCosts, ...]:
    """Of each stage on the trial's link, by the workload's layer graph. Raises: ParallelismError, WorkloadError."""
    job = trial.jobs[number]
    stages = pipelining_of(job).stages(job.workload, trial.world)
    work = Workshare(batch_size=job.workload.batch_size * job.accumulate, num_micro_batches=job.accumulate)
    return stage_costs(stages, graph_of_workload(job.workload), trial.machine_of(job), work)
