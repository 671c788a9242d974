"""Everything about a trial of a split job that can be known before it starts."""

from __future__ import annotations

from baselines.api import Scope
from baselines.parallelism.api import ParallelismError
from fabric.api import FabricKind
from harness.precision import Precision
from harness.splits.split_network import dimensions_of
from harness.trial import Trial
from models.values import Device


def check_splits(trial: Trial) -> None:
    """Raises: ParallelismError, TextError, WorkloadError with value and remedy."""
    job, spec = trial.jobs[0], trial.jobs[0].workload
    if trial.sharing is not None or job.splitting is None:
        raise ParallelismError(
            f"{trial.cell}: split jobs share by {trial.sharing}: their exchanges hold the device, so there is nothing "
            "to share; run each alone"
        )
    reasons = (
        (job.pipelining is not None, "it has pipelining too"),
        (job.system != "ours", f"the system {job.system} splits no operators"),
        (job.precision is not Precision.FLOAT32, f"precision={job.precision} is for replicas"),
        (job.clip_norm is not None, f"clip_norm={job.clip_norm} needs the norm of all parts of the weights"),
        (job.accumulate > 1, f"accumulate={job.accumulate} is for replicas and stages; use a larger batch"),
        (spec.device is Device.CUDA, "parts compute on the CPU or in replay"),
        (spec.jitter > 0 or spec.slow_worker > 1, "jitter and slow_worker are of replicas"),
        (trial.num_cost_steps > 0, f"num_cost_steps={trial.num_cost_steps} measures jobs that share"),
        (trial.trace and not trial.fabric.kind.has_processes, "the virtual clock has no moments to trace"),
        (
            trial.fabric.num_virtual > 0 and spec.device is not Device.REPLAY,
            f"num_virtual={trial.fabric.num_virtual}, and virtual peers hold no parts of their own; use replay",
        ),
    )
    if reason := next((reason for applies, reason in reasons if applies), None):
        raise ParallelismError(f"{trial.cell}: job {job.name} is split: {reason}; leave that out")
    if trial.fabric.kind is FabricKind.SIMULATED:
        raise ParallelismError(f"{trial.cell}: the fabric simulated runs no splits; use lockstep, paced or emulated")
    # A native network's rate is not known, so planners count its start-ups alone there.
    if not trial.fabric.rate_bps and trial.fabric.kind is not FabricKind.NATIVE:
        raise ParallelismError(f"{trial.cell}: the planner needs the link's rate; give the fabric rate_bps")
    plan = job.splitting.on(spec, trial.machine_of(job))
    if spec.device is not Device.REPLAY:
        dimensions_of([config.splits() for config in plan.configs], trial.world)
        if job.resolve().optimizer.scope is not Scope.ELEMENT:
            raise ParallelismError(
                f"{trial.cell}: {job.optimizer} needs whole tensors, and a rank has parts of them; use sgd or adam"
            )
        if spec.dropout != 0.0:
            raise ParallelismError(
                f"{trial.cell}: dropout={spec.dropout}: parts of a layer would draw differently; use dropout=0.0"
            )
