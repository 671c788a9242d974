"""Tests that need a GPU: `make test-gpu`. `make test` leaves the folder out, since CI has none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.engine.transport import backends_for
from models.workload import Device

sys.path.insert(0, str(Path(__file__).parent.parent / "harness"))  # the tiny models and the clocked link


@pytest.fixture(autouse=True)
def on_a_gpu() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here; run this where there is one, set up with TORCH=system")
    yield
    torch.cuda.synchronize()  # an error of the device belongs to the test that made it


@pytest.fixture
def one_rank() -> Iterator[None]:
    """The default group, of this process alone: NCCL for tensors on the GPU."""
    torch.cuda.set_device(0)
    dist.init_process_group(backends_for((Device.CUDA,)), store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
