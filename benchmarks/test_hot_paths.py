"""Hot paths of the engine, timed by pytest-benchmark: `make benchmark`.

Absolute times belong to one machine; `python -m scripts.hot_paths` keeps them and `crossover-bench compare` compares
two of its folders (docs/guide/regressions.md). Nothing here fails for being slow.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import nn

from baselines.api import Broadcast, Gather, Message, Segment
from baselines.packing.fixed_buckets import FixedBuckets
from baselines.packing.tensor_fusion import TensorFusion
from baselines.strategy import parse_strategy
from harness.engine.buffers import BufferPool, Buffers, StandingBuffers, flatten_gradients, scatter_gradients
from harness.engine.engine import Engine
from harness.engine.negotiate import Negotiation
from harness.lockstep.collectives import Room
from harness.trace import Recorder

NUM_TENSORS = 400
NUMEL = 1_000_000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a rank."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def many_tensors() -> nn.Module:
    """A model of 400 tensors of 4 elements: nothing but overhead."""
    return nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(NUM_TENSORS)])


@pytest.mark.parametrize("text", ["unfused", "unfused+half", "tensor-fusion(threshold_bytes=0)"])
def test_engine_with_400_messages(benchmark: BenchmarkFixture, text: str) -> None:
    """Divide by 400 for the engine's cost a message, with a transport that answers at once."""
    engine = Engine(many_tensors(), parse_strategy(text), Room(1).seat(0), recorder=Recorder())
    try:
        benchmark(engine.exchange_once)
        assert engine.traffic.num_messages >= NUM_TENSORS
    finally:
        engine.close()


@pytest.mark.parametrize("kind", ["pool", "standing"])
def test_flattening_and_scattering_a_million_elements(benchmark: BenchmarkFixture, kind: str) -> None:
    """60 tensors in one message of 4 MB, there and back."""
    parameters = {f"p{i}": nn.Parameter(torch.ones(NUMEL // 60)) for i in range(60)}
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    segments = tuple(
        Segment(name, tuple(p.shape), 0, p.numel(), index) for index, (name, p) in enumerate(parameters.items())
    )
    memory: Buffers = BufferPool() if kind == "pool" else StandingBuffers(segments, parameters)
    message = Message(0, segments)

    def there_and_back() -> None:
        flat = flatten_gradients(message, parameters, memory, scale=1.0)
        scatter_gradients(message, flat, flat, parameters, memory)

    benchmark(there_and_back)
    assert all(bool((p.grad == 1).all()) for p in parameters.values() if p.grad is not None)


@pytest.mark.parametrize("packing", [FixedBuckets(), TensorFusion()], ids=lambda packing: packing.card.name)
def test_packing_400_tensors(benchmark: BenchmarkFixture, packing: FixedBuckets | TensorFusion) -> None:
    """One call of the pure policy."""
    segments = [Segment(f"p{index}", (4,), 0, 4, index) for index in range(NUM_TENSORS)]
    packed = benchmark(packing.pack, segments)
    assert sum(len(group) for group in packed.groups) == NUM_TENSORS


ORDERINGS = ["p3", "bytescheduler(credit_bytes=64)", "tictac"]
NUM_SLICES = 1_000


def negotiation_of_slices(text: str) -> Negotiation:
    """One rank whose messages complete as soon as they have started, all gradients ready; to be driven to its end."""
    segments = [Segment(f"p{index}", (5,), 0, 5, index) for index in range(NUM_SLICES // 5)]
    side = Negotiation(parse_strategy(text), tuple(segments), rank=0, world=1)
    for segment in segments:
        side.ready(segment.index)
    return side


@pytest.mark.parametrize("text", ORDERINGS)
def test_deciding_on_1000_slices(benchmark: BenchmarkFixture, text: str) -> None:
    """Dispatch, ordering and encoded windows alone; divide by 1,000 for the cost a message."""

    def drain() -> int:
        side = negotiation_of_slices(f"slices(slice_elements=1)+{text}")
        num_sent = 0
        while not side.all_decided:
            asked = side.cycle((), 0.0)
            while isinstance(asked, Gather | Broadcast):
                asked = side.answered((asked.tensor,))
            while message := side.next():
                assert side.may_go(message, (), 0.0)
                num_sent += 1
        return num_sent

    assert benchmark(drain) == NUM_SLICES


@pytest.mark.parametrize("text", ["fifo", *ORDERINGS])
def test_engine_with_1000_slices(benchmark: BenchmarkFixture, text: str) -> None:
    """Divide by 1,000 for the engine's cost a message, with a transport that answers at once."""
    model = nn.ParameterList([nn.Parameter(torch.ones(5)) for _ in range(NUM_SLICES // 5)])
    engine = Engine(model, parse_strategy(f"slices(slice_elements=1)+{text}"), Room(1).seat(0), recorder=Recorder())
    try:
        benchmark(engine.exchange_once)
        assert engine.traffic.num_messages >= NUM_SLICES
    finally:
        engine.close()
