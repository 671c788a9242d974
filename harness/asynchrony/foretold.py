"""What the virtual clock says of a trial among processes: the same cluster and policy, without gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import torch

from harness.asynchrony.training import BYTES_PER_ELEMENT
from harness.asynchrony.virtual import VirtualRun
from harness.asynchrony.virtual_turns import pushes_of
from harness.trial import Trial
from models.workload import open_workload
from results.record import Prediction


def virtual_prediction(trial: Trial) -> Prediction:
    """The mean measured step of the first job's slowest worker, for parameters that travel uncompressed."""
    models = [open_workload(job.workload).build_model(trial.seed) for job in trial.jobs]
    num_bytes = [BYTES_PER_ELEMENT * sum(parameter.numel() for parameter in model.parameters()) for model in models]
    steps_s = foretold_steps_s(trial, num_bytes)[0]
    step_time_s = max(fmean(own[trial.num_warmup :]) for own in steps_s)
    return Prediction(source="the virtual clock, same cluster and policy", step_time_s=step_time_s)


def foretold_steps_s(trial: Trial, num_bytes: Sequence[float]) -> list[list[list[float]]]:
    """Every worker's step times [jobs][workers][steps]; job n has `num_bytes[n]` per push and answer, of which each
    server's link carries its part."""
    assert trial.cluster is not None, "a trial without a cluster has no virtual clock"
    nothing, runs = torch.zeros(1), dict[str, VirtualRun]()
    for index, job in enumerate(trial.jobs):
        # Updates hold nothing: only when they come is asked for.
        runs[job.name] = VirtualRun(
            trial.cluster,
            job.resolve().consistency,
            nothing,
            lambda *_: nothing,
            trial.num_warmup + trial.num_steps_of(index),
            num_bytes[index] / trial.cluster.num_servers,
            trial.seed,
        )
    pushed_s = {name: [[0.0] for _ in range(trial.cluster.num_workers)] for name in runs}
    for name, pushed in pushes_of(trial, runs):
        pushed_s[name][pushed.worker].append(pushed.time_s)
    return [[[later - earlier for earlier, later in pairwise(own)] for own in job] for job in pushed_s.values()]
