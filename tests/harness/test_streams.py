"""Which work waits for which on a GPU, on streams that only write down what they are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from harness.engine.streams import CudaStreams, HookStream, InOrder, Streams, streams_for
from harness.engine.transport import backends_for
from models.workload import Device


class Recorded:
    """torch.cuda's events and streams: waits as pairs (stream that waits, stream and moment waited for)."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.present, self.moments, self.waits = "main", 0, list[tuple[str, tuple[str, int]]]()
        self.num_streams = 0
        self.waited_for = list[str]()  # streams, by the host
        recorded = self

        class Stream(str):
            __slots__ = ()

            def wait_stream(self, other: str) -> None:
                recorded.moments += 1
                recorded.waits.append((self, (other, recorded.moments)))

            def synchronize(self) -> None:
                recorded.waited_for.append(self)

        class Event:
            def __init__(self) -> None:
                self.at = ("never", 0)

            def record(self) -> None:
                recorded.moments += 1
                self.at = (recorded.present, recorded.moments)

            def wait(self) -> None:
                recorded.waits.append((recorded.present, self.at))

        def make_stream(device: object, priority: int) -> str:
            recorded.num_streams += 1
            return Stream(f"lane {recorded.num_streams - 1}")

        patch.setattr(torch.cuda, "Event", Event)
        patch.setattr(torch.cuda, "Stream", make_stream)
        patch.setattr(torch.cuda, "stream", self.on)
        patch.setattr(torch.cuda, "current_stream", lambda device: Stream(self.present))

    @contextmanager
    def on(self, stream: str) -> Iterator[None]:
        before, self.present = self.present, stream
        yield
        self.present = before


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def make_streams() -> CudaStreams:
    return CudaStreams(("a", "b", "c"), 2, torch.device("cuda"))


def test_a_lane_waits_for_the_gradients_of_its_message_alone(recorded: Recorded) -> None:
    streams = make_streams()
    for name in "abc":
        streams.mark_ready(name)
    with streams.lane(1):
        streams.wait_ready(("a", "c"))
    assert recorded.waits == [("lane 1", ("main", 1)), ("lane 1", ("main", 3))]


def test_what_is_gathered_in_a_hook_needs_an_event_per_message_and_way(recorded: Recorded) -> None:
    streams = HookStream(torch.device("cuda"))
    assert not streams.marks_gradients
    for lane, names in enumerate(("ab", "c")):
        with streams.lane(lane):
            streams.wait_ready(names)
            streams.mark_landed(names)
    streams.wait_landed("abc")
    ready = [("lane 0", ("main", 1)), ("lane 0", ("main", 3))]
    landed = [("main", ("lane 0", 2)), ("main", ("lane 0", 4))]
    assert recorded.waits == [*ready, *landed]


def test_the_last_message_of_a_cut_parameter_covers_those_before_it(recorded: Recorded) -> None:
    streams = HookStream(torch.device("cuda"))
    with streams.lane(0):
        streams.mark_landed("a")
        streams.mark_landed("a")
    streams.wait_landed("a")
    assert recorded.waits == [("main", ("lane 0", 2))]


@pytest.mark.parametrize(("from_hooks", "num_streams"), [(True, 1), (False, 3)])
def test_the_host_waits_for_every_lane(recorded: Recorded, from_hooks: bool, num_streams: int) -> None:
    device = torch.device("cuda")
    streams: Streams = HookStream(device) if from_hooks else CudaStreams("a", num_streams, device)
    streams.until_idle()
    assert recorded.waited_for == [f"lane {number}" for number in range(num_streams)]


def test_lanes_share_streams_where_there_are_more_of_them(recorded: Recorded) -> None:
    streams = make_streams()
    streams.mark_ready("a")
    for lane in (2, 3):
        with streams.lane(lane):
            streams.wait_ready("a")
    assert recorded.waits == [("lane 0", ("main", 1)), ("lane 1", ("main", 1))]


def test_a_parameter_waits_for_every_message_with_a_part_of_it(recorded: Recorded) -> None:
    streams = make_streams()
    for name in "abc":
        streams.mark_ready(name)
    with streams.lane(0):
        streams.mark_landed(("a", "b"))
    with streams.lane(1):
        streams.mark_landed(("b", "c"))
    streams.wait_landed("b")
    assert recorded.waits == [("main", ("lane 0", 4)), ("main", ("lane 1", 5))]
    recorded.waits.clear()
    streams.wait_landed("a")
    assert recorded.waits == [("main", ("lane 0", 4))]


def test_waiting_for_all_waits_once_a_message(recorded: Recorded) -> None:
    streams = make_streams()
    for name in "abc":
        streams.mark_ready(name)
    with streams.lane(0):
        streams.mark_landed("abc")
    streams.wait_landed("abc")
    assert len(recorded.waits) == 1


def test_a_new_gradient_forgets_the_messages_of_the_step_before(recorded: Recorded) -> None:
    streams = make_streams()
    for _ in range(2):
        streams.mark_ready("a")
        with streams.lane(0):
            streams.mark_landed("a")
    streams.wait_landed("a")
    assert recorded.waits == [("main", ("lane 0", 4))]


def test_on_the_cpu_nothing_is_ordered() -> None:
    streams = streams_for({"weight": nn.Parameter(torch.zeros(2))}, 2)
    assert isinstance(streams, InOrder)
    streams.mark_ready("weight")
    with streams.lane(1):
        streams.wait_ready(("weight",))
        streams.mark_landed(("weight",))
    streams.wait_landed(("weight",))
    streams.until_idle()


def test_a_model_without_parameters_is_on_the_cpu() -> None:
    assert isinstance(streams_for({}, 1), InOrder)


@pytest.mark.parametrize(
    ("devices", "backends"),
    [
        ((), "gloo"),
        ((Device.CPU,), "gloo"),
        ((Device.REPLAY,), "gloo"),
        ((Device.CPU, Device.CUDA), "cpu:gloo,cuda:nccl"),
    ],
)
def test_gpu_tensors_go_by_nccl_and_others_by_gloo(devices: tuple[Device, ...], backends: str) -> None:
    assert backends_for(devices) == backends
