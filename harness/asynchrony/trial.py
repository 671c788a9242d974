"""A trial on the virtual clock: one process computes every worker's real gradients at the time that its cluster gives.

results = list(run_virtual(trial, signals))  # one per worker
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn

from harness.asynchrony.coding import WorkerCodes
from harness.asynchrony.training import Loss, Training
from harness.asynchrony.virtual import VirtualRun
from harness.engine.layout import trainable_parameters
from harness.lab.rank import RankResult, Signals, weights_digest
from harness.loop import Evaluated
from harness.trial import Trial
from models.workload import Device, Workload, open_workload
from results.record import Phases


def run_virtual(trial: Trial, signals: Signals) -> Iterator[RankResult]:
    """Train the trial's job on its cluster and report each worker; times are those of the virtual clock."""
    (job,), cluster = trial.jobs, trial.cluster
    assert cluster is not None, "a trial without a cluster has no virtual clock"
    if job.workload.device is Device.CUDA:
        torch.cuda.set_device(0)
    workload, strategy = open_workload(job.workload), job.resolve()
    model = workload.build_model(trial.seed)
    training = Training(model, strategy.optimizer.build, _loss_of(trial, workload), trial.world, seed=trial.seed)
    num_clocks = trial.num_warmup + trial.num_steps
    codes = WorkerCodes(strategy.compression, strategy.packing, trainable_parameters(model), trial.world, trial.seed)
    run = VirtualRun(
        cluster,
        strategy.consistency,
        training.values,
        training.update,
        num_clocks,
        training.num_bytes,
        trial.seed,
        codes.encode if strategy.compression.lossy else None,
    )
    signals.ready()
    # A worker's step lasts from one of its pushes to the next, waiting included.
    pushed_s: list[list[float]] = [[0.0] for _ in range(trial.world)]
    evaluated: list[Evaluated] = []
    for number, push in enumerate(run, start=1):
        pushed_s[push.worker].append(push.time_s)
        signals.step(number // trial.world)
        steps, rest = divmod(number, trial.world)  # as many updates as a synchronous step has
        if trial.evaluate_every and not rest and not steps % trial.evaluate_every:
            training.load(run.parameters.read())
            if (found := workload.evaluate(model)) is not None:
                evaluated.append(Evaluated(steps, push.time_s, found.loss, found.accuracy))
    training.load(run.parameters.read())
    facts = run.tally.facts(run.parameters.clocks)
    for worker, times_s in enumerate(pushed_s):
        yield RankResult(
            job=0,
            rank=worker,
            step_times_s=tuple(later - earlier for earlier, later in pairwise(times_s)),
            losses=tuple(training.losses[worker]),
            evaluated=tuple(evaluated) if worker == 0 else (),
            phases=Phases(),
            num_messages=2.0,
            wire_bytes={
                "push": run.num_pushed_bytes / run.parameters.num_pushed,
                "pull": float(training.num_bytes),
            },
            weights_digest=weights_digest(model),
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
            peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            start_s=0.0,
            end_s=times_s[-1],
            consistency=facts if worker == 0 else None,
        )


def _loss_of(trial: Trial, workload: Workload) -> Loss:
    batches = [workload.batches(worker, trial.world, trial.seed) for worker in range(trial.world)]

    def loss(worker: int, model: nn.Module) -> Tensor:
        return workload.loss(model, next(batches[worker]))

    return loss
