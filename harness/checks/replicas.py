"""Jobs that train by data parallelism, on any fabric."""

from __future__ import annotations

import torch

from baselines.api import Aggregate, AllGather, AllReduce, Exchange, How, NeedsWorld, UpdatePoint
from baselines.strategy import parse_strategy
from crossover import Sharing
from fabric.api import FabricKind
from harness.checks.consistency import check_consistency
from harness.parallel.sessions import RunsPipelines
from harness.precision import Precision
from harness.systems import system_of
from harness.systems.api import HasPrecisions, LimitsOptimizers, Warms
from harness.trial import Job, Trial, TrialError
from models.values import Device


def check_replicas(trial: Trial) -> None:
    """Raises: TrialError, TextError, CatalogueError, NetworkError with value and remedy."""
    if trial.sharing is Sharing.MPS:
        raise TrialError(
            f"{trial.cell}: mps is a service of the GPU's driver, which no trial starts; use `crossover run`"
        )
    if trial.fabric.kind is FabricKind.LOCKSTEP:
        _check_lockstep(trial)
    for job in trial.jobs:
        system = system_of(job.system)
        if isinstance(system, RunsPipelines):
            raise TrialError(f"{trial.cell}: {job.system} trains pipelines alone; give job {job.name} pipelining")
        if isinstance(system, Warms) and system.num_warmup > trial.num_warmup:
            raise TrialError(
                f"{trial.cell}: {job.system} needs {system.num_warmup} steps before it is what it will be, and "
                f"num_warmup is {trial.num_warmup}; warm up longer or let it search less"
            )
        precisions = system.precisions if isinstance(system, HasPrecisions) else frozenset({Precision.FLOAT32})
        if job.precision not in precisions:
            known = ", ".join(sorted(precisions))
            raise TrialError(f"{trial.cell}: {job.system} does not train in {job.precision} here; use {known}")
        if job.system == "ours":
            if job.precision.scales_loss:
                _check_skipping(trial, job)
            _check_update_point(trial, job)
            _check_exchange(trial, job)
            check_consistency(trial, job)
            _check_local_steps(trial, job)
        else:
            # Other systems have no strategy, but the optimizer is a plug-in of ours.
            optimizer = parse_strategy(job.optimizer).optimizer
            if isinstance(system, LimitsOptimizers) and (reason := system.why_not_stepped(optimizer)):
                raise TrialError(f"{trial.cell}: {job.optimizer} under {job.system}: {reason}")


def _check_update_point(trial: Trial, job: Job) -> None:
    if job.resolve().update_point is not UpdatePoint.AT_PRE_HOOK:
        return
    if trial.sharing is not None and not trial.sharing.waits_in_turn:
        raise TrialError(
            f"{trial.cell}: at-pre-hook waits for messages inside the turn, which {trial.sharing} must "
            "not; update after-all"
        )
    if job.clip_norm is not None:
        raise TrialError(
            f"{trial.cell}: clip_norm={job.clip_norm:g} needs the norm of all gradients, and at-pre-hook updates a "
            "layer before the others' have arrived; update after-all, or do not clip"
        )


def _check_local_steps(trial: Trial, job: Job) -> None:
    """Weights are exchanged before they are looked at, and each exchange begins a period of local steps."""
    period = job.resolve().local_steps
    if trial.evaluate_every % period:
        raise TrialError(
            f"{trial.cell}: evaluate_every={trial.evaluate_every} would cut the periods of local-steps(n={period}) "
            f"short; evaluate every {period} steps, or a multiple of it"
        )


def _check_skipping(trial: Trial, job: Job) -> None:
    """A step is skipped as a whole, so nothing of it may be applied before all of it is known."""
    strategy = job.resolve()
    asked = f"{trial.cell}: precision={job.precision} skips a step in which any gradient overflows, and"
    if strategy.update_point is UpdatePoint.AT_PRE_HOOK:
        raise TrialError(
            f"{asked} at-pre-hook updates a layer before the others' have arrived; update after-all, or use bfloat16"
        )
    if strategy.updates_on_servers:
        raise TrialError(f"{asked} each server updates its part at once; use update='worker', or bfloat16")
    if strategy.local_steps > 1:
        raise TrialError(f"{asked} ranks take local steps alone; leave local-steps out, or use bfloat16")


def _check_exchange(trial: Trial, job: Job) -> None:
    strategy = job.resolve()
    if isinstance(strategy.exchange, NeedsWorld) and (reason := strategy.exchange.why_unfit(trial.num_ranks)):
        raise TrialError(f"{trial.cell}: {job.strategy}: {reason}")
    if trial.fabric.num_virtual and not _suits_equal_peers(strategy.exchange, trial.num_ranks):
        raise TrialError(
            f"{trial.cell}: {job.strategy}: the exchange {strategy.exchange.card.name!r} sends each rank something of "
            f"its own, which virtual peers do not have; use real ranks (--fabric emulated, or num_virtual=0) or the "
            "exchange 'all-reduce'"
        )
    if strategy.num_workers(trial.world) < trial.world and trial.sharing is not None:
        raise TrialError(
            f"{trial.cell}: {job.strategy} has ranks that only serve, which take no turns under {trial.sharing}; use "
            "servers=0, or run the job alone"
        )
    if strategy.updates_on_servers and job.clip_norm is not None:
        raise TrialError(
            f"{trial.cell}: clip_norm={job.clip_norm:g} needs the norm of all gradients, and each server has a part of "
            "them; use update='worker', or do not clip"
        )


def _suits_equal_peers(exchange: Exchange, world: int) -> bool:
    """Whether what rank 0 gets from peers that hold the same as itself is known."""
    if How.SUM not in exchange.takes:
        return True  # a payload of its own kind; the group refuses what it cannot answer
    asked = next(exchange.run(Aggregate((torch.zeros(world),), How.SUM, "gradient"), 0, world))
    return isinstance(asked, AllReduce | AllGather)


def _check_lockstep(trial: Trial) -> None:
    """One process, no time: what is about either is asked of another fabric."""
    jobs = trial.jobs
    reasons = (
        (trial.sharing is not None and trial.cluster is None, f"jobs cannot share by {trial.sharing}"),
        *((job.system != "ours", f"{job.system} is processes of its own") for job in jobs),
        (any(job.workload.device is Device.REPLAY for job in jobs), "a replayed workload learns nothing"),
        (any(job.clip_norm is not None for job in jobs), "gradients are not clipped"),
        (trial.num_cost_steps > 0, "there are no costs to measure"),
        (trial.trace, "there are no moments to trace"),
        (trial.ranks_per_host > 1, f"every rank is a host's only one, not one of {trial.ranks_per_host}"),
    )
    if reason := next((reason for applies, reason in reasons if applies), None):
        raise TrialError(f"{trial.cell}: in lockstep {reason}; run it on the emulated or native fabric")
