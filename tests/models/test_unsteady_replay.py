"""Jitter and a slow worker in replay: the same steps on every run, mean one, rank 0 alone slower."""

import statistics

import pytest

from models.device import VirtualDevice
from models.replay import ReplayWorkload
from models.values import Device, WorkloadError, WorkloadSpec
from models.workload import open_workload

STEADY = WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=1000)


def stretches(rank: int, num: int, seed: int = 1, **settings: float) -> list[float]:
    workload = open_workload(WorkloadSpec(**{**vars_of(STEADY), **settings}), device=VirtualDevice.local())
    assert isinstance(workload, ReplayWorkload)
    batches = workload.batches(rank, 4, seed)
    found = []
    for _ in range(num):
        next(batches)
        found.append(workload.pace.stretch)
    return found


def vars_of(spec: WorkloadSpec) -> dict[str, object]:
    return {name: getattr(spec, name) for name in ("network", "device", "size_scale")}


def test_without_jitter_every_step_takes_the_profiles_time() -> None:
    assert stretches(0, 5) == [1.0] * 5


def test_jitter_has_mean_one_and_the_deviation_asked_for() -> None:
    found = stretches(1, 4000, jitter=0.3)
    assert statistics.fmean(found) == pytest.approx(1.0, abs=0.02)
    assert statistics.stdev(found) == pytest.approx(0.3, abs=0.02)


def test_jitter_repeats_by_seed_and_differs_by_rank() -> None:
    assert stretches(1, 5, jitter=0.3) == stretches(1, 5, jitter=0.3)
    assert stretches(1, 5, jitter=0.3) != stretches(2, 5, jitter=0.3)
    assert stretches(1, 5, jitter=0.3) != stretches(1, 5, seed=2, jitter=0.3)


def test_rank_0_alone_is_the_slow_worker() -> None:
    assert stretches(0, 2, slow_worker=1.5) == [1.5, 1.5]
    assert stretches(1, 2, slow_worker=1.5) == [1.0, 1.0]


def test_real_compute_has_no_jitter_to_set() -> None:
    with pytest.raises(WorkloadError, match="replay with jitter"):
        WorkloadSpec(network="resnet20", jitter=0.1)
