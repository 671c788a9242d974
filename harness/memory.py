"""Whether a trial fits into memory, asked before anything starts."""

from __future__ import annotations

import psutil

from harness.trial import Trial, TrialError
from models.workload import Device, open_workload

PROCESS_BYTES = 150_000_000  # a forked rank's own pages, gloo's buffers included
HEADROOM = 0.9


def trial_bytes(trial: Trial) -> int:
    """Estimated memory of all ranks of all jobs on this machine (on the CPU)."""
    per_rank = [open_workload(job.workload).memory_bytes() for job in trial.jobs if job.workload.device is not Device.CUDA]
    return trial.world * (sum(per_rank) + len(trial.jobs) * PROCESS_BYTES)


def check_memory(trial: Trial) -> int:
    """The estimate in bytes. Raises: TrialError if it is more than what is free."""
    needed, free = trial_bytes(trial), psutil.virtual_memory().available
    if needed > HEADROOM * free:
        raise TrialError(
            f"{trial.cell}: needs about {needed / 1e9:.1f} GB on this machine and {free / 1e9:.1f} GB are free; "
            "use fewer hosts, a smaller batch, or replay with a larger size scale"
        )
    return needed
