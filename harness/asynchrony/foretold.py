"""What the virtual clock says of a trial among processes: the same cluster and policy, without gradients."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import torch

from harness.asynchrony.training import BYTES_PER_ELEMENT
from harness.asynchrony.virtual import VirtualRun
from harness.trial import Trial
from models.workload import open_workload
from results.record import Prediction


def virtual_prediction(trial: Trial) -> Prediction:
    """The mean measured step of the slowest worker, for parameters that travel uncompressed."""
    model = open_workload(trial.jobs[0].workload).build_model(trial.seed)
    num_bytes = BYTES_PER_ELEMENT * sum(parameter.numel() for parameter in model.parameters())
    step_time_s = max(fmean(own[trial.num_warmup :]) for own in foretold_steps_s(trial, num_bytes))
    return Prediction(source="the virtual clock, same cluster and policy", step_time_s=step_time_s)


def foretold_steps_s(trial: Trial, num_bytes: float) -> list[list[float]]:
    """Every worker's step times [workers][steps] with `num_bytes` per push and answer."""
    assert trial.cluster is not None, "a trial without a cluster has no virtual clock"
    num_clocks, nothing = trial.num_warmup + trial.num_steps, torch.zeros(1)
    policy = trial.jobs[0].resolve().consistency
    # Updates hold nothing: only when they come is asked for.
    run = VirtualRun(trial.cluster, policy, nothing, lambda *_: nothing, num_clocks, num_bytes, trial.seed)
    pushed_s = [[0.0] for _ in range(trial.cluster.num_workers)]
    for pushed in run:
        pushed_s[pushed.worker].append(pushed.time_s)
    return [[later - earlier for earlier, later in pairwise(own)] for own in pushed_s]
