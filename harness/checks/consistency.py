"""Workers that do not wait for each other: what they need, and what the virtual clock models alone."""

from __future__ import annotations

from baselines.api import SharesMemory
from baselines.strategy import why_not_pushed
from crossover import Sharing
from fabric.api import FabricKind
from harness.asynchrony.cluster import OnLoss
from harness.precision import Precision
from harness.trial import Job, Link, Trial, TrialError
from models.values import Device


def check_consistency(trial: Trial, job: Job) -> None:
    """Workers that do not wait push to servers, which a trial has only with a cluster."""
    strategy, cluster = job.resolve(), trial.cluster
    if not strategy.consistency.is_synchronous and cluster is None:
        raise TrialError(
            f"{trial.cell}: {job.strategy} lets workers go on without each other; give the trial a cluster, or use bsp"
        )
    if cluster is None:
        return
    if isinstance(strategy.consistency, SharesMemory) and trial.world > 1:
        raise TrialError(
            f"{trial.cell}: {strategy.consistency.card.name} shares the memory of one host, and the trial has "
            f"{trial.world}; use asp, or harness.problems.shared_memory"
        )
    on_hosts = trial.fabric.kind.has_processes
    if cluster.num_workers + (cluster.num_servers if on_hosts else 0) != trial.world:
        servers = f" and {cluster.num_servers} servers" if on_hosts else ""
        raise TrialError(
            f"{trial.cell}: a cluster of {cluster.num_workers} workers{servers} on {trial.world} ranks of the fabric "
            f"{trial.fabric.kind}; use a host for each"
        )
    if job.accumulate > 1 or job.clip_norm is not None or job.precision is not Precision.FLOAT32:
        raise TrialError(
            f"{trial.cell}: workers that push to servers neither accumulate nor clip, and train in float32; leave "
            "accumulate, clip_norm and precision out"
        )
    if reason := why_not_pushed(strategy):
        raise TrialError(f"{trial.cell}: {job.strategy}: {reason}")
    if trial.sharing is not None:
        _check_turns(trial, trial.sharing)
    if on_hosts:
        _check_processes(trial, job)


def _check_turns(trial: Trial, sharing: Sharing) -> None:
    """Workers take a turn per step, on the device alone."""
    if sharing not in (Sharing.CROSSOVER, Sharing.EXCLUSIVE):
        raise TrialError(
            f"{trial.cell}: jobs that push to servers share by crossover or exclusive, not by {sharing}: their turn is "
            "a step's computation, whatever travels meanwhile"
        )
    if sharing.gates_link and trial.link is Link.FIFO:
        raise TrialError(
            f"{trial.cell}: link=fifo under {sharing}: a pull waits for other workers, and a link turn held meanwhile "
            "could stop the worker that it waits for; use link=fair"
        )


def _check_processes(trial: Trial, job: Job) -> None:
    """What the virtual clock models and processes do not do."""
    strategy, cluster = job.resolve(), trial.cluster
    assert cluster is not None
    refusals = (
        (job.system != "ours", "run under ours"),
        (job.workload.device is not Device.CPU, f"compute on the cpu, not on {job.workload.device}"),
        (trial.fabric.num_virtual > 0, "are all real; use num_virtual=0"),
        (
            trial.fabric.kind is not FabricKind.PACED and any(slow > 1 for slow in cluster.disturbances.slow_links),
            "share equal links here",
        ),
        (strategy.compression.lossy, "push uncompressed updates here; compress on the virtual clock"),
    )
    if reason := next((reason for applies, reason in refusals if applies), None):
        raise TrialError(f"{trial.cell}: workers as processes on the fabric {trial.fabric.kind} {reason}")
    if trial.on_loss is OnLoss.CONTINUE and strategy.consistency.is_synchronous:
        raise TrialError(
            f"{trial.cell}: on_loss=continue under {strategy.consistency.card.name}, whose steps need every worker; "
            "use asp or ssp, or on_loss=stop"
        )
