"""Every compressor as a strategy names it: 25.5 million float32 elements (ResNet-50) there and back on one core.

`make benchmark ARGS='-k test_compression.py'`, then `.venv/bin/python -m scripts.compression_page`, which draws the
roofline and writes the table of docs/guide/compression.md.

A rank's way through `reduce` is timed with nobody else: encoding, decoding once, a merge of the tree once; where
servers combine, as one of four workers and servers. The multiple of one `copy_` of that size is taken in the same run,
best beside best. Peak extra memory is that of a forked process; more than twice the tensor fails, being slow does not.

The roofline is what must move at least: gradient in and mean out, each state in and out, the payload out and in.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from roofline import Roofline, settle
from torch import Tensor

from baselines.api import (
    Aggregate,
    Aggregated,
    Compressor,
    Context,
    How,
    Message,
    Reduced,
    Segment,
    State,
)
from baselines.catalogue import plugins
from baselines.kernels import warm_up
from baselines.strategy import parse_strategy

SHAPES = (*((512, 512, 3, 3),) * 10, (480, 3973))
NUMEL = 25_500_000
PAST_WARM_UP = 1_000
M_MMAP_THRESHOLD = -3  # of glibc's mallopt
NUM_SERVERS = 4  # the rows of all shapes are a multiple: so servers' shares are alike
TARGET_COPIES = {
    "half": 3,
    "half(dtype='bfloat16')": 3,
    "onebit": 12,
    "aji-heafield": 20,
    "dgc": 20,
    "topk": 40,
    "qsgd": 30,
}
OTHERS = (
    "topk(values='float16')",
    "gtopk",
    "random-k",
    "random-k(shared=False)",
    "qsgd(coding='elias')",
    "sbc",
    "powersgd",
    "onebit-adam",
    "signsgd",
    "signum",
    "scaled-sign",
    "natural",
    "terngrad",
    "topk+error-feedback",
    "onebit+error-feedback",
    "onebit+double-squeeze+error-feedback",
)
METHODS = (*TARGET_COPIES, *OTHERS)
NEEDS = {"gtopk": "tree", "dgc": "sgd(momentum=0.0)", "signum": "sgd(momentum=0.0)", "onebit-adam": "frozen-adam"}
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    warm_up()
    yield
    torch.set_num_threads(before)


@cache
def gradient(device: str) -> Tensor:
    """Of a hundred layers whose scales span four decades."""
    values = torch.randn(NUMEL, generator=torch.Generator().manual_seed(1))
    values.view(100, -1).mul_(torch.logspace(-5, -1, 100).unsqueeze(1))
    return values.to(device)


@dataclass(slots=True)
class Way:
    """One message of the whole model through one compressor, again and again."""

    compressor: Compressor
    device: str
    grad: Tensor = field(init=False)
    states: dict[str, State] = field(init=False)
    context: Context = field(init=False)
    payload_bytes: int = 0

    def __post_init__(self) -> None:
        segments = []
        for index, shape in enumerate(SHAPES):
            numel = torch.Size(shape).numel()
            segments.append(Segment(f"layer{index}", shape, 0, numel, index))
        message = Message(0, tuple(segments))
        assert message.numel == NUMEL
        self.grad = gradient(self.device).clone()
        self.states = {s.name: self.compressor.init(s.name, torch.zeros(s.shape, device=self.device)) for s in segments}
        generator = torch.Generator().manual_seed(2)
        world = NUM_SERVERS if self.compressor.how is How.SCATTER else 1
        self.context = Context(0, world, PAST_WARM_UP, message, generator, num_workers=world)

    @property
    def state_bytes(self) -> int:
        return sum(tensor.nbytes for state in self.states.values() for tensor in state.values())

    def refill(self) -> None:
        """A new gradient, in the memory of the last one."""
        self.grad.copy_(gradient(self.device))

    def __call__(self) -> Reduced:
        """There and back. The gradient is spent."""
        reduction, self.payload_bytes = self.compressor.reduce(self.grad, self.states, self.context), 0
        try:
            aggregate = next(reduction)
            while True:
                self.payload_bytes += sum(part.nbytes for part in aggregate.payload)
                aggregate = reduction.send(answer_to(aggregate, self.context.world))
        except StopIteration as end:
            reduced: Reduced = end.value
            return reduced


def answer_to(aggregate: Aggregate, world: int) -> Aggregated:
    """What an exchange among `world` ranks answers that all have the same; merged once, as in a round of the tree."""
    payload = aggregate.payload
    if aggregate.how is How.MERGE and aggregate.merge is not None:
        return Aggregated((aggregate.merge(payload, tuple(part.clone() for part in payload)),))
    return Aggregated((payload[:1],) * world)


def way(text: str, device: str) -> Way:
    name = text.partition("(")[0]
    return Way(parse_strategy("+".join(filter(None, ("single-bucket", text, NEEDS.get(name))))).compression, device)


def peak_extra_bytes(call: Callable[[], object], device: str) -> int:
    """By how much memory in use rises at most during `call`: on the CPU what is resident in a process of its own."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        settle(device)
        return torch.cuda.max_memory_allocated() - before
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(sink, struct.pack("q", resident_rise(call)))
        finally:
            os._exit(0)
    os.close(sink)
    with os.fdopen(source, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    assert len(told) == 8, "the process that measured memory failed"
    return int(struct.unpack("q", told)[0])


def resident_rise(call: Callable[[], object]) -> int:
    """Peak less present resident memory of this process, in bytes (Linux with glibc)."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 1 << 20)  # what is freed goes back at once: the peak of what is needed, not kept
    libc.malloc_trim(0)  # what was freed before must not hide what is taken now
    Path("/proc/self/clear_refs").write_text("5")  # sets the peak to what is resident now
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


@pytest.mark.timeout(300)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("text", METHODS)
def test_there_and_back(benchmark: BenchmarkFixture, text: str, device: str) -> None:
    there_and_back = way(text, device)
    reduced = there_and_back()
    assert bool(reduced.value.isfinite().all())
    assert torch.dot(reduced.value, gradient(device)) > 0  # it points the gradient's way
    del reduced
    there_and_back.refill()
    extra = peak_extra_bytes(there_and_back, device) / (4 * NUMEL)
    assert extra <= 2
    moved = 8 * NUMEL + 2 * there_and_back.state_bytes + 2 * there_and_back.payload_bytes
    target = TARGET_COPIES.get(text)
    roofline = Roofline(NUMEL, device)
    roofline.time(benchmark, there_and_back, moved_bytes=moved, target_copies=target, prepare=there_and_back.refill)
    benchmark.extra_info |= {
        "method": text,
        "device": device,
        "numel": NUMEL,
        "bytes_per_element": round(there_and_back.payload_bytes / NUMEL, 4),
        "extra_memory_tensors": round(extra, 2),
        "state_tensors": round(there_and_back.state_bytes / (4 * NUMEL), 2),
    }


def test_every_compressor_has_its_line() -> None:
    named = {part.partition("(")[0] for text in METHODS for part in text.split("+")}
    compressors = {name for name, kind in plugins().items() if kind.card.slot == "compression"}
    assert compressors - named == {"uncompressed", "warm-up"}  # nothing to do, and its inner compressor
