"""The user's own data reach jobs that share, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.workload import Device
from suites.api import Options
from suites.catalogue import suite_of


@pytest.mark.parametrize("suite", ["quick", "crossover", "gpu"])
def test_jobs_that_share_train_on_the_users_images(suite: str, images: Path) -> None:
    """Whatever trains on images takes them; text and replay stay as they were."""
    device = Device.CUDA if suite == "gpu" else Device.CPU
    cells, own = (suite_of(suite).grid(Options(data_path=path, device=device)) for path in ("", str(images)))
    shared = [(a, b) for a, b in zip(cells, own, strict=True) if a.sharing is not None]
    jobs = [pair for a, b in shared for pair in zip(a.jobs, b.jobs, strict=True)]
    changed = [after.workload for before, after in jobs if after != before]
    assert changed
    assert {spec.data_path for spec in changed} == {str(images)}
    assert {spec.network for spec in changed} <= {"resnet20", "resnet50"}
    kept = [after.workload for before, after in jobs if after == before]
    assert all(spec.device is Device.REPLAY or spec.network.startswith("bert") for spec in kept)


def test_the_smoke_pair_of_quick_trains_on_the_users_images(images: Path) -> None:
    cells = suite_of("quick").grid(Options(data_path=str(images), smoke=True))
    assert {job.workload.data_path for cell in cells if cell.sharing is not None for job in cell.jobs} == {str(images)}


def test_images_are_decoded_beside_the_steps_and_in_batches_of_the_users_size(images: Path) -> None:
    usual, own = (
        {
            job.workload
            for cell in suite_of("quick").grid(Options(data_path=str(images), **options))
            for job in cell.jobs
            if job.workload.data == "imagefolder"
        }
        for options in ({}, {"batch_size": 5, "num_loaders": 0})
    )
    assert all(spec.num_workers > 0 for spec in usual)
    assert {(spec.batch_size, spec.num_workers) for spec in own} == {(5, 0)}
