"""Turns on a GPU's own clock, with events that tell a clock of their own; and what holds without a GPU."""

from __future__ import annotations

import io
import itertools
from collections.abc import Hashable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from clocked_link import LINK, virtual_world
from hypothesis import given
from hypothesis import strategies as st

from crossover import Alone
from fabric.api import FabricKind, FabricSpec
from fabric.collectives import Collective
from harness.lab import gpu
from harness.lab.gpu import EventTurns, GpuMemory, logged_turns, on_host_clock, own_times, peak_memory, until_idle
from harness.lab.process import Lab
from harness.paced.link_client import Paid
from harness.trial import Job, Trial
from harness.turns import LoggedTurns, Turn
from models.workload import Device, WorkloadSpec

HOST_AT_ZERO_S, DRIFT = 100.0, 1.001  # the device's clock is slow by a thousandth


class FakeDevice:
    """A device on which work ends some time after its launch; `now_ms` is its own clock."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_ms = self.idle_at_ms = 0.0
        device = self

        class Event:
            def __init__(self, **asked: bool) -> None:
                self.at_ms = 0.0

            def record(self) -> None:
                self.at_ms = max(device.now_ms, device.idle_at_ms)

            def synchronize(self) -> None:
                device.now_ms = max(device.now_ms, self.at_ms)

            def elapsed_time(self, other: Event) -> float:
                return other.at_ms - self.at_ms

        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(gpu, "perf_counter", self.host_s)

    def host_s(self) -> float:
        return HOST_AT_ZERO_S + 1e-3 * self.now_ms * DRIFT

    def launch(self, work_ms: float) -> None:
        self.idle_at_ms = max(self.now_ms, self.idle_at_ms) + work_ms


def test_a_turn_lasts_as_long_as_the_devices_work_although_python_returned_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = FakeDevice(monkeypatch)
    turns = EventTurns(Alone())
    for _ in range(3):
        device.now_ms += 2.0
        with turns.turn():
            device.launch(10.0)
        device.now_ms = device.idle_at_ms
    found = own_times(turns)
    lasted_s = [turn.released_s - turn.granted_s for turn in found]
    assert lasted_s == pytest.approx([0.010 * DRIFT] * 3)
    between_s = [after.granted_s - before.released_s for before, after in itertools.pairwise(found)]
    assert between_s == pytest.approx([0.002 * DRIFT] * 2)
    assert found[0].granted_s == pytest.approx(HOST_AT_ZERO_S + 0.002 * DRIFT)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=20), st.floats(-0.01, 0.01))
def test_events_lie_between_their_anchors_in_order(gaps_s: list[float], drift: float) -> None:
    elapsed_s = sum(gaps_s) * (1 + drift)
    times_s = on_host_clock(gaps_s, 50.0, 50.0 + elapsed_s)
    assert len(times_s) == len(gaps_s) - 1
    assert [50.0, *times_s] == sorted([50.0, *times_s])
    assert all(time_s <= 50.0 + elapsed_s * (1 + 1e-9) for time_s in times_s)


def test_without_a_gpu_turns_are_logged_by_the_host_and_no_memory_is_told() -> None:
    turns = logged_turns(Alone(), Device.CPU)
    assert type(turns) is LoggedTurns
    with turns.turn():
        pass
    assert own_times(turns) == tuple(turns.turns)
    assert all(isinstance(turn, Turn) for turn in own_times(turns))
    assert peak_memory(Device.REPLAY) == GpuMemory(0, 0)
    until_idle(Device.CPU)


def test_a_message_on_a_gpu_is_paid_from_when_its_stream_comes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is ten milliseconds behind Python; the link's time starts after them."""
    device = FakeDevice(monkeypatch)
    device.launch(10.0)
    asked_at_ms = list[float]()

    class Carrier:
        def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
            assert work_s == pytest.approx(LINK.seconds(Collective.ALL_REDUCE, 12))
            asked_at_ms.append(device.now_ms)
            paid(None)

        def close(self) -> None:
            """Nothing is held."""

    class OnDevice(torch.Tensor):
        is_cuda = True  # type: ignore[assignment]

    with virtual_world(Carrier()):
        dist.group.WORLD.allreduce([torch.ones(3).as_subclass(OnDevice)]).wait()  # type: ignore[union-attr]
    assert asked_at_ms == [10.0]


def test_a_lab_prepares_a_gpus_job_without_starting_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that it forks could not use the GPU then. Adam asks whether a graph is being recorded, which starts it."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    asked: list[str] = []
    for asking in ("torch.cuda.is_current_stream_capturing", "torch.accelerator.current_stream"):
        monkeypatch.setattr(asking, partial(asked.append, asking))
    workload = WorkloadSpec(network="resnet20", batch_size=4, device=Device.CUDA)
    job = Job(name="a", workload=workload, optimizer="adam(lr=0.0001)")
    trial = Trial(
        suite="test", cell="test", jobs=(job,), fabric=FabricSpec(kind=FabricKind.NATIVE, num_hosts=1, rate_bps=None)
    )
    lab = Lab(io.BytesIO(), io.BytesIO(), Path())
    lab._preload(trial)
    assert lab._opened == {repr(workload)}
    assert asked == []
