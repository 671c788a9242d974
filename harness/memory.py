"""Whether a trial fits into memory, asked before anything starts."""

from __future__ import annotations

from functools import cache

import psutil

from fabric.api import FabricKind
from harness.trial import Trial, TrialError
from models.networks import find_network
from models.workload import Device, WorkloadSpec, open_workload

PROCESS_BYTES = 150_000_000  # a forked rank's own pages, gloo's buffers included
HEADROOM = 0.9
# What a virtual rank keeps of a parameter, in float32: weight, gradient, two of the optimizer, two of the compressor,
# and the message that it becomes.
REPLICA_BYTES = 4 * 7
# A process of a library that is started by itself imports torch anew, and its largest buffers are sent and received.
COLLECTIVE_BYTES = 2 * 256_000_000 + 300_000_000


def trial_bytes(trial: Trial, num_ranks: int | None = None) -> int:
    """Estimated memory, on the CPU, of `num_ranks` ranks of every job: those on this machine, by default all."""
    if trial.fabric.kind is FabricKind.SIMULATED or trial.problem is not None:
        return PROCESS_BYTES
    if trial.collective is not None:
        return trial.world * (PROCESS_BYTES + COLLECTIVE_BYTES)
    if trial.is_partitioned and not trial.fabric.kind.has_processes:
        return PROCESS_BYTES + _partitioned_bytes(trial)
    if not trial.fabric.kind.has_processes:
        on_gpu = trial.jobs[0].workload.device is Device.CUDA
        return PROCESS_BYTES if on_gpu else PROCESS_BYTES + replica_bytes(trial)
    per_rank = [_rank_bytes(job.workload) for job in trial.jobs if job.workload.device is not Device.CUDA]
    return (num_ranks or trial.world) * (sum(per_rank) + len(trial.jobs) * PROCESS_BYTES)


def _partitioned_bytes(trial: Trial) -> int:
    """Of stages and splits in one process: a version of the weights for each rank, and what one rank holds. In replay
    times are all that there is."""
    # In replay nothing but times is computed, for any number of ranks.
    real = [job.workload for job in trial.jobs if job.workload.device is not Device.REPLAY]
    versions = [REPLICA_BYTES * trial.world * find_network(own.network).num_parameters for own in real]
    return sum(versions) + sum(_rank_bytes(own) for own in real)


def replica_bytes(trial: Trial) -> int:
    """Estimated memory of a lockstep trial on its device: P replicas with their states, and the activations of one rank
    at a time."""
    workload = trial.jobs[0].workload
    return trial.world * REPLICA_BYTES * find_network(workload.network).num_parameters + _rank_bytes(workload)


@cache
def _rank_bytes(workload: WorkloadSpec) -> int:
    """Once a workload: opening one reads its data's folders or text."""
    return open_workload(workload).memory_bytes()


def check_memory(trial: Trial, num_ranks: int | None = None) -> int:
    """The estimate in bytes. Raises: TrialError if it is more than what is free."""
    needed, free = trial_bytes(trial, num_ranks), psutil.virtual_memory().available
    # Refused here rather than killed later by the kernel, which would choose a process of its own liking.
    if needed > HEADROOM * free:
        raise TrialError(
            f"{trial.cell}: needs about {needed / 1e9:.1f} GB on this machine and {free / 1e9:.1f} GB are free; "
            "use fewer hosts, a smaller batch, or replay with a larger size scale"
        )
    return needed
