"""Everything about a trial of pipelined jobs that can be known before it starts."""

from __future__ import annotations

from baselines.api import UpdatePoint
from baselines.parallelism.api import ParallelismError
from baselines.parallelism.plans import check_stages
from baselines.parallelism.programs import program_of
from crossover import Sharing
from fabric.api import FabricKind
from harness.parallel.placement import graph_of_workload, num_micro_batches_per_update
from harness.parallel.sessions import RunsPipelines
from harness.precision import Precision
from harness.systems import system_of
from harness.trial import Job, Trial
from models.values import Device

ON_CLOCK = (None, Sharing.EXCLUSIVE, Sharing.CROSSOVER)
REFUSED = {
    Sharing.HOLD: "a pass has no messages of its own that a turn could be held for",
    Sharing.TICK_TOCK: "a turn is one pass already, forward or backward",
}


def check_pipelines(trial: Trial) -> None:
    """Raises: ParallelismError, TextError, WorkloadError with value and remedy."""
    if any(job.pipelining is None for job in trial.jobs):
        raise ParallelismError(
            f"{trial.cell}: pipelined jobs share with others that are not, whose turns go round by the step; give all "
            "of them pipelining, or none"
        )
    if trial.sharing in REFUSED:
        raise ParallelismError(
            f"{trial.cell}: pipelines under {trial.sharing}: {REFUSED[trial.sharing]}; use crossover"
        )
    if trial.fabric.num_virtual:
        raise ParallelismError(
            f"{trial.cell}: {trial.fabric.num_virtual} virtual peers, and a stage needs a real neighbour; use "
            "num_virtual=0"
        )
    if trial.fabric.kind is FabricKind.SIMULATED:
        raise ParallelismError(
            f"{trial.cell}: pipelines on a named network: their clock knows a switch that never blocks; use lockstep"
        )
    if not trial.fabric.kind.has_processes:
        _check_clock(trial)
    for job in trial.jobs:
        _check_job(trial, job)


def _check_clock(trial: Trial) -> None:
    if trial.sharing not in ON_CLOCK:
        raise ParallelismError(
            f"{trial.cell}: on the virtual clock pipelines share by exclusive or crossover, not by {trial.sharing}; "
            "use one of them, or the paced fabric"
        )
    if trial.trace:
        raise ParallelismError(
            f"{trial.cell}: on the virtual clock there are no moments to trace; use the paced fabric"
        )
    for job in trial.jobs:
        if job.system != "ours" or (trial.sharing is not None and job.workload.device is not Device.REPLAY):
            raise ParallelismError(
                f"{trial.cell}: the virtual clock runs our own schedules, and shared ones in replay alone; use the "
                "paced fabric"
            )


def _check_job(trial: Trial, job: Job) -> None:
    asked, spec = job.pipelining, job.workload
    assert asked is not None, "asked for pipelines alone"
    reasons = (
        (job.precision is not Precision.FLOAT32, f"precision={job.precision} is for replicas"),
        (job.clip_norm is not None, f"clip_norm={job.clip_norm} needs the norm of all stages' gradients"),
        (spec.device is Device.CUDA, "stages compute on the CPU or in replay"),
        (spec.jitter > 0 or spec.slow_worker > 1, "jitter and slow_worker are of replicas"),
        (trial.sharing is not None and job.system != "ours", f"{job.system} takes no turns, and the trial shares"),
        (trial.fabric.kind is FabricKind.PACED and not trial.fabric.rate_bps, "the paced link has no rate"),
    )
    if reason := next((reason for applies, reason in reasons if applies), None):
        raise ParallelismError(f"{trial.cell}: job {job.name} is a pipeline: {reason}; leave that out")
    _check_strategy(trial, job)
    system = system_of(job.system)
    if job.system != "ours":
        reason = system.why_unfit_for(asked.schedule) if isinstance(system, RunsPipelines) else "it has no pipelines"
        if reason is not None:
            raise ParallelismError(f"{trial.cell}: {job.system}: {reason}; use the system ours")
    # What only the executor would find out, minutes later and on every rank.
    schedule, stages = asked.resolve(), asked.stages(spec, trial.world)
    if not schedule.synchronous and len(stages) > 1 and graph_of_workload(spec).layers[-1].tied_bytes:
        raise ParallelismError(
            f"{trial.cell}: {spec.network} has one weight in two stages, whose versions {schedule.card.name} would let "
            "differ; use a synchronous schedule, or a network without tied weights"
        )
    if trial.finds_phases and (not schedule.synchronous or job.start_phase or spec.device is not Device.REPLAY):
        raise ParallelismError(
            f"{trial.cell}: finds_phases needs steps that the virtual clock repeats: replayed jobs of synchronous "
            f"schedules without a start_phase of their own; job {job.name} is none"
        )
    check_stages(stages, stages[-1].stop, spec.batch_size)
    num_micro_batches = num_micro_batches_per_update(schedule, job.accumulate)
    program_of(schedule, len(stages) // schedule.stages_per_rank, num_micro_batches)


def _check_strategy(trial: Trial, job: Job) -> None:
    """Replicas of a stage sum their gradients when all of them are there, and nobody else is asked."""
    strategy = job.resolve()
    reasons = (
        (strategy.update_point is not UpdatePoint.AFTER_ALL, "a stage is updated once its gradients are summed"),
        (strategy.local_steps > 1, "a pipeline has no local steps"),
        (not strategy.consistency.is_synchronous, "a schedule says how stale weights are"),
        (strategy.updates_on_servers or strategy.num_workers(2) < 2, "a stage has no servers"),
        (strategy.needs_costs or strategy.tuning.num_trials > 0, "layer times within a stage are not measured"),
        (
            strategy.compression.lossy and not trial.fabric.kind.has_processes,
            "on the virtual clock replicas sum plainly",
        ),
    )
    if reason := next((reason for applies, reason in reasons if applies), None):
        raise ParallelismError(f"{trial.cell}: {job.strategy}: {reason}; use packing, ordering and compression alone")
