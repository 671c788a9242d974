"""Laws of compressors and of exchanges: what is conserved, how much is lost, what travels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layouts import reduce_together, segments_of
from torch import Tensor

from baselines.api import (
    Aggregate,
    Aggregated,
    Exchange,
    How,
    KeepsResidual,
    Payload,
    Slot,
    Transfer,
    Votes,
    as_bytes,
    from_bytes,
)
from baselines.catalogue import plugins
from baselines.compression.error_feedback import ErrorFeedback
from baselines.compression.half import DTYPES, Half
from baselines.compression.topk import TopK
from baselines.exchange.ring import Ring
from baselines.exchange.tree import Tree
from baselines.sparsity import num_kept
from harness.engine.traffic import sent_by
from harness.lockstep.collectives import perform

LOSSY = [
    kind()
    for kind in plugins().values()
    if kind.card.slot is Slot.COMPRESSION
    and not kind.card.wraps
    and kind().lossy
    and not isinstance(kind(), KeepsResidual | Votes)  # no error feedback goes around it: it has a law of its own
]
EXCHANGES = [kind() for kind in plugins().values() if kind.card.slot is Slot.EXCHANGE]

SEEDS = st.integers(0, 2**31 - 1)


def random_grads(seed: int, world: int, numel: int) -> list[Tensor]:
    """Gradients whose elements span several orders of magnitude."""
    dice = torch.Generator().manual_seed(seed)
    shape = (world, numel)
    scales = 10.0 ** (4 * torch.rand(shape, generator=dice) - 3)
    return list(torch.randn(shape, generator=dice) * scales)


@pytest.mark.parametrize("inner", LOSSY, ids=lambda inner: inner.card.name)
@given(seed=SEEDS, world=st.integers(1, 3), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_what_was_sent_plus_the_residual_is_what_was_given(
    inner: Half | TopK, seed: int, world: int, sizes: list[int]
) -> None:
    """Σ sent + e_T = Σ g on every rank, to 1e-6 of the largest Σ|g|: each of 3 steps adds in float32."""
    compressor, segments, numel = ErrorFeedback(inner), segments_of(sizes), sum(sizes)
    states = [{s.name: compressor.init(s.name, torch.zeros(s.shape)) for s in segments} for _ in range(world)]
    given_sum, sent_sum = torch.zeros(2, world, numel, dtype=torch.float64)
    magnitude = torch.zeros(world, numel, dtype=torch.float64)
    for step in range(3):
        grads = random_grads(seed + step, world, numel)
        given_sum += torch.stack(grads)
        magnitude += torch.stack(grads).abs()
        exchange = Tree() if inner.how is How.MERGE else None
        reduced = reduce_together(compressor, [grad.clone() for grad in grads], states, segments, exchange=exchange)
        sent = torch.stack([part(r.contributed) for r in reduced])
        rounding = world * 2.0**-11 * sent.abs().sum(0)  # half sums in half; nobody else is worse
        assert bool(((reduced[0].value - sent.sum(0)).abs() <= rounding).all())
        sent_sum += sent
    residual = torch.stack([torch.cat([own[s.name]["residual"] for s in segments]) for own in states])
    assert bool(((sent_sum + residual - given_sum).abs() <= 1e-6 * magnitude.amax()).all())


def part(contributed: Tensor | None) -> Tensor:
    assert contributed is not None
    return contributed.double()


@given(seed=SEEDS, numel=st.integers(1, 300), density=st.floats(0.001, 1.0))
def test_top_k_keeps_the_largest_and_contracts(seed: int, numel: int, density: float) -> None:
    """‖a − topk(a)‖² ≤ (1 − k/n)‖a‖², to float32 rounding of the norms."""
    compressor = TopK(density=density)
    (grad,) = random_grads(seed, 1, numel)
    (reduced,) = reduce_together(compressor, [grad.clone()], [{}], segments_of([numel]))
    k = num_kept(numel, compressor.density)
    kept = part(reduced.contributed)
    assert int((kept != 0).sum()) <= k
    assert set(kept[kept != 0].tolist()) <= set(grad.double().tolist())
    lost, whole = float((grad - kept).square().sum()), float(grad.double().square().sum())
    assert lost <= (1 - k / numel) * whole * (1 + 1e-6)


@pytest.mark.parametrize(("density", "numel", "k"), [(0.07, 100, 7), (0.28, 25, 7), (0.14, 50, 7), (0.55, 100, 55)])
def test_a_density_that_names_a_whole_number_keeps_that_many(density: float, numel: int, k: int) -> None:
    """The product of the floats is above k by rounding alone."""
    assert num_kept(numel, density) == k
    (grad,) = random_grads(1, 1, numel)
    (reduced,) = reduce_together(TopK(density=density), [grad.clone()], [{}], segments_of([numel]))
    assert int((part(reduced.contributed) != 0).sum()) == k


@given(numel=st.integers(1, 10**9), permille=st.integers(1, 1000), k=st.integers(1, 10**9))
def test_what_is_kept_is_the_ceiling_of_the_decimal_and_of_the_ratio(numel: int, permille: int, k: int) -> None:
    assert num_kept(numel, permille / 1000) == -(-numel * permille // 1000)
    assert num_kept(numel, min(k, numel) / numel) == min(k, numel)


@pytest.mark.parametrize(("dtype", "unit", "smallest"), [("float16", 2.0**-11, 2.0**-25), ("bfloat16", 2.0**-8, 0.0)])
@given(seed=SEEDS)
def test_half_precision_rounds_to_nearest(dtype: str, unit: float, smallest: float, seed: int) -> None:
    """|x − half(x)| ≤ unit·|x|, or half of the smallest subnormal of float16."""
    (grad,) = random_grads(seed, 1, 100)
    (reduced,) = reduce_together(Half(dtype=dtype), [grad.clone()], [{}], segments_of([100]))
    error = (part(reduced.contributed) - grad).abs()
    assert bool((error <= unit * grad.abs() + smallest).all())


def test_half_precision_knows_its_formats() -> None:
    assert set(DTYPES) == {"float16", "bfloat16"}


def drive(exchange: Exchange, payloads: Sequence[Payload], how: How) -> tuple[list[Aggregated], list[float], int]:
    """Results by rank, bytes sent a rank by primitive, and whether the number of neighbour transfers."""
    world = len(payloads)
    runs = [exchange.run(Aggregate(payload, how, "test"), rank, world) for rank, payload in enumerate(payloads)]
    results: list[Aggregated] = []
    sent: list[float] = []
    num_transfers = 0
    answers: list[Payload | None] = [None] * world
    while not results:
        asked = []
        for run, answer in zip(runs, answers, strict=True):
            try:
                asked.append(run.send(answer))  # type: ignore[arg-type]
            except StopIteration as end:
                results.append(end.value)
        if asked:
            sent.append(sent_by(asked[0], world).payload_bytes)
            num_transfers += isinstance(asked[0], Transfer)
            answers = list(perform(asked))
    return results, sent, num_transfers


@given(world=st.integers(1, 6), chunk=st.integers(1, 9), seed=SEEDS)
def test_ring_takes_the_optimal_number_of_bytes_and_steps(world: int, chunk: int, seed: int) -> None:
    numel = world * chunk
    grads = random_grads(seed, world, numel)
    results, sent, num_transfers = drive(Ring(), [(grad.clone(),) for grad in grads], How.SUM)
    assert num_transfers == len(sent) == 2 * (world - 1)
    assert sum(sent) == pytest.approx(2 * (world - 1) / world * numel * 4)
    for result in results:
        assert torch.equal(result.parts[0][0], results[0].parts[0][0])


@pytest.mark.parametrize("exchange", EXCHANGES, ids=lambda exchange: exchange.card.name)
@given(world=st.integers(1, 5), numel=st.integers(1, 30), seed=SEEDS)
def test_every_exchange_sums_alike_on_all_ranks(exchange: Exchange, world: int, numel: int, seed: int) -> None:
    """Against the sum in float64: P−1 additions in float32 round by half an ulp of Σ|x| each."""
    grads = random_grads(seed, world, numel)
    results, _, _ = drive(exchange, [(grad.clone(),) for grad in grads], How.SUM)
    totals = [result.parts[0][0] for result in results]
    exact, magnitude = torch.stack(grads).double().sum(0), torch.stack(grads).double().abs().sum(0)
    for total in totals:
        assert torch.equal(total, totals[0])
        assert bool(((total - exact).abs() <= world * 2.0**-24 * magnitude).all())


@pytest.mark.parametrize(
    "exchange", [e for e in EXCHANGES if How.CONCAT in e.takes], ids=lambda exchange: exchange.card.name
)
@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=4))
def test_payloads_of_unequal_size_arrive_whole_and_pay_a_header(exchange: Exchange, lengths: list[int]) -> None:
    payloads: list[Payload] = [
        (torch.full((2,), float(rank)), torch.arange(length, dtype=torch.int32)) for rank, length in enumerate(lengths)
    ]
    results, sent, _ = drive(exchange, payloads, How.CONCAT)
    world = len(lengths)
    assert sent == [8.0 * (world - 1), (world - 1) * (8.0 + 4 * max(lengths))]
    for result in results:
        for arrived, payload in zip(result.parts, payloads, strict=True):
            assert all(torch.equal(one, other) for one, other in zip(arrived, payload, strict=True))


TENSORS = st.sampled_from(["float32", "float16", "bfloat16", "int32", "uint8", "int64"]).flatmap(
    lambda name: st.integers(0, 9).map(lambda length: torch.arange(length).to(getattr(torch, name)))
)


@given(payload=st.lists(TENSORS, min_size=1, max_size=4).map(tuple))
def test_payloads_survive_their_way_through_bytes(payload: Payload) -> None:
    data = as_bytes(payload)
    assert data.dtype is torch.uint8
    assert data.numel() == sum(tensor.numel() * tensor.element_size() for tensor in payload)
    for one, other in zip(from_bytes(data, payload), payload, strict=True):
        assert one.dtype is other.dtype
        assert torch.equal(one, other)


def test_bytes_are_those_that_numpy_writes() -> None:
    values = np.array([1.5, -2.0], dtype=np.float32)
    assert bytes(as_bytes((torch.from_numpy(values),)).tolist()) == values.tobytes()
