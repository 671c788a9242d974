"""The user's own data: what a path holds, and which workloads it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.trial import Job
from models.networks import find_network
from models.workload import Device, WorkloadError, WorkloadSpec

IMAGES, TEXT = "imagefolder", "textfile"
NUM_EVALUATION = 512  # held-out samples; ImageNet's 50,000 would take longer than the training


def data_in(path: Path) -> str:
    """The kind of data that `path` holds, by its name in the catalogue.

    Raises: WorkloadError if it is absent or holds neither images by class nor text.
    """
    wanted = "give an ImageNet folder (train/ and val/ by class), a .txt file or a folder of them"
    if not path.exists():
        raise WorkloadError(f"--data {str(path)!r} does not exist; {wanted}")
    if (path / "train").is_dir() or (path / "val").is_dir():
        return IMAGES
    if path.is_file() or any(path.rglob("*.txt")):
        return TEXT
    raise WorkloadError(f"--data {str(path)!r} holds neither images by class nor text; {wanted}")


def with_data(spec: WorkloadSpec, path: str) -> WorkloadSpec:
    """The same workload on the user's own data, if it trains and its network can train on what `path` holds.

    Raises: WorkloadError as `data_in` does.
    """
    if not path or spec.device is Device.REPLAY or (data := data_in(Path(path))) not in find_network(spec.network).data:
        return spec
    return replace(spec, data=data, data_path=path, num_evaluation=spec.num_evaluation or NUM_EVALUATION)


def jobs_with_data(jobs: tuple[Job, ...], path: str) -> tuple[Job, ...]:
    """Jobs that share, each on the user's own data where it can be. Raises: WorkloadError as `data_in` does."""
    return tuple(replace(job, workload=with_data(job.workload, path)) for job in jobs)
