"""PowerSGD: what is lost stays in the residual, what travels is what is told, and the approximation is a good one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import reduce_together
from torch import Tensor

from baselines.api import Aggregated, Context, How, Message, Segment, State
from baselines.compression.error_feedback import ErrorFeedback
from baselines.compression.powersgd import PowerSgd
from baselines.strategy import StrategyError, parse_strategy
from harness.predict.costs import Cost, LinkCosts
from harness.predict.demand import Demands

SHAPES = ((30, 20), (20,), (8, 3, 3, 3), (), (40, 7))


def layout(*shapes: tuple[int, ...]) -> tuple[Segment, ...]:
    return tuple(Segment(f"p{i}", shape, 0, math.prod(shape), i) for i, shape in enumerate(shapes))


def states_of(
    compressor: PowerSgd | ErrorFeedback, segments: tuple[Segment, ...], world: int
) -> list[dict[str, State]]:
    return [{s.name: compressor.init(s.name, torch.zeros(s.shape)) for s in segments} for _ in range(world)]


def grads_of(seed: int, world: int, numel: int) -> list[Tensor]:
    return list(torch.randn(world, numel, generator=torch.Generator().manual_seed(seed)))


def low_rank(seed: int, shape: tuple[int, int], rank: int) -> Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randn(shape[0], rank, generator=dice) @ torch.randn(rank, shape[1], generator=dice)


def error(value: Tensor, exact: Tensor) -> float:
    return float((value - exact).norm() / exact.norm())


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), world=st.integers(1, 4), rank=st.integers(1, 9), warm=st.booleans())
def test_original_is_average_plus_residual(seed: int, world: int, rank: int, warm: bool) -> None:
    """Every step and rank: contributed + residual = gradient + residual before, to 1e-5 of the largest element; and
    what was applied is the sum of what ranks contributed, on all ranks alike."""
    compressor, segments = ErrorFeedback(PowerSgd(rank=rank, warm_start=warm)), layout(*SHAPES)
    states, before = states_of(compressor, segments, world), torch.zeros(world, sum(s.numel for s in segments))
    for step in range(3):
        grads = grads_of(seed + step, world, before.shape[1])
        given = torch.stack(grads) + before
        reduced = reduce_together(compressor, [grad.clone() for grad in grads], states, segments)
        before = torch.stack([torch.cat([own[s.name]["residual"] for s in segments]) for own in states])
        largest = float(given.abs().max())
        contributed = torch.stack([r.contributed for r in reduced if r.contributed is not None])
        assert float((contributed + before - given).abs().max()) <= 1e-5 * largest
        assert float((reduced[0].value - contributed.sum(0)).abs().max()) <= 1e-5 * largest * world
        assert float((reduced[0].value + before.sum(0) - given.sum(0)).abs().max()) <= 1e-5 * largest * world
        assert all(torch.equal(r.value, reduced[0].value) for r in reduced)


@given(seed=st.integers(0, 10_000), world=st.integers(1, 3))
def test_full_rank_is_exact(seed: int, world: int) -> None:
    """(m + n)·r ≥ m·n at r = min(m, n): nothing is compressed, and the sum is the plain one bit for bit."""
    segments = layout((6, 9), (9, 6), (4,))
    grads = grads_of(seed, world, 112)
    reduced = reduce_together(
        PowerSgd(rank=6), [g.clone() for g in grads], states_of(PowerSgd(), segments, world), segments
    )
    total = grads[0].clone()
    for grad in grads[1:]:
        total.add_(grad)
    assert torch.equal(reduced[0].value, total)


@pytest.mark.parametrize("world", [1, 3])
def test_a_mean_of_that_rank_is_exact_though_no_part_is(world: int) -> None:
    """The sum over ranks has rank 2, each rank's part rank 5 or more: one power iteration finds the two directions."""
    segments, total = layout((30, 20)), low_rank(1, (30, 20), 2)
    parts = [low_rank(2 + rank, (30, 20), 5) for rank in range(world - 1)]
    grads = [p.flatten() for p in [*parts, total - sum(parts, torch.zeros(30, 20))]]
    compressor = PowerSgd(rank=2)
    (first, *_) = reduce_together(compressor, grads, states_of(compressor, segments, world), segments)
    assert error(first.value.view(30, 20), total) < 1e-5


def test_a_warm_start_comes_to_the_best_approximation_and_a_cold_one_does_not() -> None:
    """Power iteration on one matrix: the error of rank 2 falls to that of the truncated singular value decomposition
    (within 1e-3 of it after 30 steps), while new draws stay above."""
    matrix, segments = grads_of(4, 1, 600)[0].view(30, 20), layout((30, 20))
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    best = error(u[:, :2] * s[:2] @ v[:2], matrix)
    errors = {}
    for warm in (True, False):
        compressor = PowerSgd(rank=2, warm_start=warm)
        states = states_of(compressor, segments, 1)
        for _ in range(30):
            (reduced,) = reduce_together(compressor, [matrix.flatten().clone()], states, segments)
        errors[warm] = error(reduced.value.view(30, 20), matrix)
    assert best <= errors[True] * (1 + 1e-6)
    assert errors[True] <= best * (1 + 1e-3)
    assert errors[False] > best * 1.02


def sent_by(compressor: PowerSgd, segments: tuple[Segment, ...]) -> list[tuple[How, int]]:
    """What one rank asks for: kind and bytes of each aggregate."""
    message = Message(0, segments)
    context = Context(0, 1, 0, message, torch.Generator())
    run = compressor.reduce(torch.ones(message.numel), states_of(compressor, segments, 1)[0], context)
    asked: list[tuple[How, int]] = []
    answer = None
    while True:
        try:
            aggregate = next(run) if answer is None else run.send(answer)
        except StopIteration:
            return asked
        (tensor,) = aggregate.payload
        asked.append((aggregate.how, tensor.numel() * tensor.element_size()))
        answer = Aggregated((aggregate.payload,))


@pytest.mark.parametrize("rank", [1, 4, 8, 100])
def test_a_message_is_two_sums_whose_bytes_are_those_told(rank: int) -> None:
    compressor = PowerSgd(rank=rank)
    asked = sent_by(compressor, layout(*SHAPES))
    assert all(how is How.SUM for how, _ in asked)
    assert tuple(nbytes for _, nbytes in asked) == compressor.aggregate_bytes(Message(0, layout(*SHAPES)), 4)
    assert len(asked) == (1 if rank == 100 else 2)


def test_bytes_are_those_of_the_formula() -> None:
    """Rank 2 of [30 × 20]: 60 and 40 elements; the vector of 20 goes with the first."""
    assert sent_by(PowerSgd(rank=2), layout((30, 20), (20,))) == [(How.SUM, 4 * 80), (How.SUM, 4 * 40)]
    assert sent_by(PowerSgd(rank=2), layout((20,), ())) == [(How.SUM, 4 * 21)]
    assert sent_by(PowerSgd(rank=2), layout((6, 2, 3))) == [(How.SUM, 4 * 12), (How.SUM, 4 * 12)]
    assert sent_by(PowerSgd(rank=3), layout((6, 2, 3))) == [(How.SUM, 4 * 36)]  # (6 + 6)·3 = 6·6 saves nothing
    assert PowerSgd(rank=4).wire_bytes(10_000, 4) == 4 * 2 * 100 * 4
    assert PowerSgd(rank=4).wire_bytes(16, 4) == 4 * 16


def test_a_prediction_knows_shapes() -> None:
    """Two all-reduces of 2(P−1)/P of what is sent each, and a message of vectors takes one start-up less."""
    costs = LinkCosts(world=2, primitives={"AllReduce": Cost(0.001, 1e-8)})
    demands = Demands(parse_strategy("powersgd(rank=8)+error-feedback"), costs)
    both, one = demands.of(Message(0, layout((30, 20), (20,)))), demands.of(Message(0, layout((20,))))
    assert both.alpha_s == pytest.approx(0.002)
    assert both.sent_bytes == pytest.approx(4 * (50 * 8 + 20))
    assert both.bytes_s == pytest.approx(4 * (50 * 8 + 20) * 1e-8)
    assert one.alpha_s == pytest.approx(0.001)
    assert one.sent_bytes == pytest.approx(80)


def test_every_rank_draws_the_same_and_every_name_its_own() -> None:
    """By a checksum of the name, not by Python's hash, which another process salts in another way."""
    drawn = PowerSgd(rank=1).init("layer.weight", torch.zeros(8, 8))["q"]
    assert torch.equal(drawn, PowerSgd(rank=1).init("layer.weight", torch.ones(8, 8))["q"])
    assert not torch.equal(drawn, PowerSgd(rank=1).init("other.weight", torch.zeros(8, 8))["q"])
    assert not torch.equal(drawn, PowerSgd(rank=1, seed=1).init("layer.weight", torch.zeros(8, 8))["q"])
    expected = torch.randn(1, 8, generator=torch.Generator().manual_seed(3_936_099_695))
    assert torch.equal(drawn, expected)


def test_a_zero_gradient_is_survived() -> None:
    """A warm Q becomes zero, and the next step finds a direction nevertheless: no NaN, nothing stuck."""
    compressor, segments = PowerSgd(rank=1), layout((30, 20))
    states = states_of(compressor, segments, 2)
    zeros = reduce_together(compressor, [torch.zeros(600), torch.zeros(600)], states, segments)
    assert torch.equal(zeros[0].value, torch.zeros(600))
    target = low_rank(1, (30, 20), 1)
    for _ in range(2):
        (reduced, _) = reduce_together(compressor, [target.flatten() / 2 for _ in range(2)], states, segments)
    assert error(reduced.value.view(30, 20), target) < 1e-5


@pytest.mark.parametrize("at", [0, 599, 610])
def test_a_nan_reaches_the_result(at: int) -> None:
    compressor, segments = PowerSgd(rank=1), layout((30, 20), (20,))
    grads = grads_of(0, 2, 620)
    grads[1][at] = math.nan
    for reduced in reduce_together(compressor, grads, states_of(compressor, segments, 2), segments):
        assert bool(reduced.value.isnan().any())


def test_what_does_not_fit_says_why() -> None:
    with pytest.raises(ValueError, match="rank is 0; an approximation has rank 1 or more"):
        PowerSgd(rank=0)
    with pytest.raises(StrategyError, match="needs whole tensors and the packing cuts them"):
        parse_strategy("powersgd+slices")
