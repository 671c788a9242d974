"""The user's own data: what a path holds, and which workloads it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.trial import Job
from models.networks import find_network
from models.workload import Device, WorkloadError, WorkloadSpec
from suites.api import Options

IMAGES, TEXT = "imagefolder", "textfile"
NUM_LOADERS = 2  # processes per rank that decode images ahead, so that no step waits for them
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


def with_data(spec: WorkloadSpec, options: Options) -> WorkloadSpec:
    """The same workload in batches of the user's size and on the user's own data, if it trains and its network can
    train on what the path holds.

    Raises: WorkloadError as `data_in` does.
    """
    if spec.device is Device.REPLAY:
        return spec
    if options.batch_size is not None:
        spec = replace(spec, batch_size=options.batch_size)
    path = options.data_path
    if not path or (data := data_in(Path(path))) not in find_network(spec.network).data:
        return spec
    usual_loaders = NUM_LOADERS if data == IMAGES else 0
    return replace(
        spec,
        data=data,
        data_path=path,
        num_workers=usual_loaders if options.num_loaders is None else options.num_loaders,
        num_evaluation=spec.num_evaluation or NUM_EVALUATION,
    )


def jobs_with_data(jobs: tuple[Job, ...], options: Options) -> tuple[Job, ...]:
    """Jobs that share, each on the user's own data where it can be. Raises: WorkloadError as `data_in` does."""
    return tuple(replace(job, workload=with_data(job.workload, options)) for job in jobs)
