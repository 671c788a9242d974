"""A trial on the virtual clock: one process computes every worker's real gradients at the time that its cluster gives.

results = list(run_virtual(trial, signals))  # one per job and worker
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor, nn

from harness.asynchrony.coding import WorkerCodes
from harness.asynchrony.training import PUSHED, Loss, Training
from harness.asynchrony.virtual import Pushed, VirtualRun
from harness.asynchrony.virtual_turns import DeviceSeats, pushes_of
from harness.engine.layout import fitting_parameters
from harness.lab.rank import RankResult, Signals, weights_digest
from harness.loop import Evaluated
from harness.trial import Trial
from harness.turns import spans_of
from models.workload import Device, Workload, open_workload
from results.record import Phases


@dataclass(slots=True)
class _VirtualJob:
    """One job of the trial, and what its record will say; `pushed_s` [workers] begins at 0."""

    index: int
    run: VirtualRun
    training: Training
    workload: Workload
    evaluate_every: int
    pushed_s: list[list[float]] = field(init=False)
    evaluated: list[Evaluated] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pushed_s = [[0.0] for _ in range(self.run.cluster.num_workers)]

    def note(self, push: Pushed) -> None:
        """A push has come; evaluate if as many have as `evaluate_every` synchronous steps have."""
        self.pushed_s[push.worker].append(push.time_s)
        steps, rest = divmod(self.run.parameters.num_pushed, self.run.cluster.num_workers)
        if not self.evaluate_every or rest or steps % self.evaluate_every:
            return
        self.training.load(self.run.parameters.read())
        if (found := self.workload.evaluate(self.training.model)) is not None:
            self.evaluated.append(Evaluated(steps, push.time_s, found.loss, found.accuracy))


def run_virtual(trial: Trial, signals: Signals) -> Iterator[RankResult]:
    """Train the trial's jobs on its cluster, several in turns, and report each worker; times are those of the virtual
    clock."""
    jobs = {job.name: _virtual_job(trial, index) for index, job in enumerate(trial.jobs)}
    runs = {name: job.run for name, job in jobs.items()}
    signals.ready()
    for number, (name, push) in enumerate(pushes_of(trial, runs), start=1):
        jobs[name].note(push)
        signals.step(number // (trial.world * len(jobs)))
    for job in jobs.values():
        yield from _results(job)


def _virtual_job(trial: Trial, index: int) -> _VirtualJob:
    job, cluster = trial.jobs[index], trial.cluster
    assert cluster is not None, "a trial without a cluster has no virtual clock"
    if job.workload.device is Device.CUDA:
        torch.cuda.set_device(0)
    workload, strategy = open_workload(job.workload), job.resolve()
    model = workload.build_model(trial.seed)
    parameters = fitting_parameters(model, strategy.takes | PUSHED)
    training = Training(model, strategy.optimizer.build, _loss_of(trial, workload), trial.world, seed=trial.seed)
    codes = WorkerCodes(strategy.compression, strategy.packing, parameters, trial.world, trial.seed)
    run = VirtualRun(
        cluster,
        strategy.consistency,
        training.values,
        training.update,
        trial.num_warmup + trial.num_steps_of(index),
        training.num_bytes,
        trial.seed,
        codes.encode if strategy.compression.lossy else None,
    )
    return _VirtualJob(index, run, training, workload, trial.evaluate_every)


def _results(job: _VirtualJob) -> Iterator[RankResult]:
    run, training = job.run, job.training
    training.load(run.parameters.read())
    facts = run.tally.facts(run.parameters.clocks)
    turns = run.devices.turns if isinstance(run.devices, DeviceSeats) else [[] for _ in job.pushed_s]
    pushed_bytes = run.num_pushed_bytes / run.parameters.num_pushed
    # No rank serves here, yet the servers send too: every worker an answer per step, as among processes.
    answered_bytes = float(training.num_bytes * run.cluster.num_workers)
    wire_bytes = {"push": pushed_bytes} if pushed_bytes > answered_bytes else {"answer": answered_bytes}
    for worker, times_s in enumerate(job.pushed_s):
        yield RankResult(
            job=job.index,
            rank=worker,
            # A worker's step lasts from one of its pushes to the next, waiting included.
            step_times_s=tuple(later - earlier for earlier, later in pairwise(times_s)),
            losses=tuple(training.losses[worker]),
            evaluated=tuple(job.evaluated) if worker == 0 else (),
            phases=Phases(),
            num_messages=2.0,
            wire_bytes=wire_bytes,
            weights_digest=weights_digest(training.model),
            num_parameters=sum(parameter.numel() for parameter in training.model.parameters()),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            start_s=0.0,
            end_s=times_s[-1],
            turns=tuple(turns[worker]),
            compute_times=spans_of(turns[worker]),
            consistency=facts if worker == 0 else None,
        )


def _loss_of(trial: Trial, workload: Workload) -> Loss:
    batches = [workload.batches(worker, trial.world, trial.seed) for worker in range(trial.world)]

    def loss(worker: int, model: nn.Module) -> Tensor:
        return workload.loss(model, next(batches[worker]))

    return loss
