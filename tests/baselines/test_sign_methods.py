"""signSGD, Signum, scaled sign, natural compression and TernGrad: their rules, their laws, their bytes."""

from __future__ import annotations

from logging import LogRecord

import pytest
import torch
from driven_ranks import Ranks, parameters_of
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from baselines.compression.natural import Natural
from baselines.compression.scaled_sign import ScaledSign
from baselines.compression.signsgd import SignSgd, Signum
from baselines.compression.terngrad import TernGrad
from baselines.strategy import StrategyError, parse_strategy
from baselines.text import TextError

SHAPES = ((3, 5), (7,), ())
NUMEL = 23


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_each_element_goes_the_way_of_most_ranks(world: int) -> None:
    grads = drawn(world, NUMEL)
    results = Ranks(SignSgd(), world, parameters_of(SHAPES)).reduce(list(grads))
    assert all(torch.equal(result.value, grads.sign().sum(0).sign()) for result in results)


@pytest.mark.parametrize("compressor", [SignSgd(), Signum()], ids=lambda own: own.card.name)
def test_a_gradient_that_is_no_number_has_no_vote_and_is_logged(
    compressor: SignSgd | Signum, logged: list[LogRecord]
) -> None:
    grads = drawn(3, NUMEL)
    voted = Ranks(compressor, 3, parameters_of(SHAPES)).reduce(list(grads))[0].value
    grads[1, 4], grads[2, 5] = torch.nan, torch.inf
    both = [Ranks(compressor, 3, parameters_of(SHAPES)) for _ in range(2)]
    result = both[0].reduce(list(grads))[0].value
    assert [record.getMessage() for record in logged] == [
        "1 elements of p0 and what travels with it are no number: no vote"
    ]
    zeroed = grads.clone()
    zeroed[1, 4], zeroed[2, 5] = 0.0, 1.0
    assert torch.equal(result, both[1].reduce(list(zeroed))[0].value)
    assert torch.equal(result[6:], voted[6:])


def test_signum_votes_with_the_momentum() -> None:
    ranks, momenta = Ranks(Signum(momentum=0.8), 3, parameters_of(SHAPES)), torch.zeros(3, NUMEL)
    for step in range(4):
        grads = drawn(3, NUMEL, seed=step)
        momenta = 0.8 * momenta + 0.2 * grads / 3
        assert torch.equal(ranks.reduce(list(grads))[1].value, momenta.sign().sum(0).sign())


@pytest.mark.parametrize("method", [SignSgd(), Signum()])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_elements_without_a_gradient_stay_where_they_are(method: SignSgd | Signum, world: int) -> None:
    """A draw among an even number of ranks; else there and back in two steps."""
    ranks, moved = Ranks(method, world, parameters_of(SHAPES)), torch.zeros(NUMEL)
    for _ in range(4):
        value = ranks.reduce([torch.zeros(NUMEL)] * world)[0].value
        moved += value
        assert world % 2 == 1 or not value.any()
    assert not moved.any()


def test_a_vote_takes_one_bit_an_element() -> None:
    ranks = Ranks(SignSgd(), 2, parameters_of(((40, 40),)))
    ranks.reduce(list(drawn(2, 1600)))
    assert ranks.sent == [200, 200]


def test_no_error_feedback_goes_around_a_vote_and_momentum_is_applied_once() -> None:
    with pytest.raises(TextError, match=r"use scaled-sign\+error-feedback"):
        parse_strategy("signsgd+error-feedback")
    with pytest.raises(StrategyError, match=r"sgd\(momentum=0\.0\)"):
        parse_strategy("signum")
    with pytest.raises(TextError, match=r"momentum is 1\.0"):
        parse_strategy("signum(momentum=1.0)+sgd(momentum=0.0)")


@given(seed=st.integers(0, 1000), size=st.integers(1, 60))
def test_scaled_sign_is_the_mean_magnitude_and_contracts_as_the_paper_says(seed: int, size: int) -> None:
    values = drawn(size, seed=seed)
    (result,) = Ranks(ScaledSign(), 1, parameters_of(((size,),))).reduce([values])
    mean = float(values.abs().mean())
    torch.testing.assert_close(result.value, torch.where(values >= 0, mean, -mean))
    exact, own = values.double(), result.value.double()
    lost = float((exact - own).square().sum())
    whole = float(exact.square().sum())
    assert lost == pytest.approx(whole - float(exact.abs().sum()) ** 2 / size, abs=1e-5 * whole)  # float32 scale


def test_natural_compression_gives_a_power_of_two_beside_each_element() -> None:
    values = torch.cat([drawn(500) * 10.0 ** (10 * torch.rand(500, generator=torch.Generator().manual_seed(1)) - 5)])
    (result,) = Ranks(Natural(), 1, parameters_of(((500,),))).reduce([values])
    mantissa, exponent = torch.frexp(result.value)
    assert bool((mantissa.abs() == 0.5).all())
    below = torch.frexp(values)[1]  # 2^(below−1) ≤ |v| < 2^below
    assert bool(((exponent == below) | (exponent == below + 1)).all())
    assert torch.equal(result.value.sign(), values.sign())


@pytest.mark.parametrize("value", [1.0, -1.25, 1.5, 1.75, -3e-5, 0.0])
def test_natural_compression_is_right_on_average_with_an_eighth_of_the_variance_at_most(value: float) -> None:
    """20,000 draws: the mean to five of its standard errors, at most √(1/8/20,000)·|v| each."""
    (result,) = Ranks(Natural(), 1, parameters_of(((20_000,),))).reduce([torch.full((20_000,), value)])
    error = result.value.double() - value
    assert abs(float(error.mean())) <= 5 * (1 / 8 / 20_000) ** 0.5 * abs(value)
    assert float(error.square().mean()) <= 1.05 * value**2 / 8  # 1.5 has an eighth exactly, to a few per cent of noise


def test_natural_compression_takes_nine_bits_and_keeps_what_is_not_finite() -> None:
    ranks = Ranks(Natural(), 2, parameters_of(((80,),)))
    grads = list(drawn(2, 80))
    grads[1][3] = torch.inf
    assert float(ranks.reduce(grads)[0].value[3]) == torch.inf
    assert ranks.sent == [90, 90]


@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf, -torch.inf])
def test_natural_compression_never_takes_what_is_not_finite_for_a_zero(value: float) -> None:
    (result,) = Ranks(Natural(), 1, parameters_of(((20_000,),))).reduce([torch.full((20_000,), value)])
    assert bool(result.value.isinf().all())
    if value == value:
        assert bool((result.value == value).all())


def test_terngrad_is_right_on_average_without_clipping() -> None:
    """4,000 draws of five elements whose scale is 2: five standard errors, s·√(p(1 − p)/4,000) ≤ 0.016 each."""
    row = torch.tensor([2.0, -1.0, 0.5, 0.0, -2.0])
    ranks = Ranks(TernGrad(clip=0.0), 1, parameters_of(((20_000,),)))
    values = ranks.reduce([row.repeat(4_000)])[0].value.view(4_000, 5)
    assert set(values.unique().tolist()) <= {-2.0, 0.0, 2.0}
    assert bool(((values.mean(0) - row).abs() <= 0.08).all())


def test_terngrad_clips_its_scale_to_so_many_deviations() -> None:
    values = torch.ones(100)
    values[0] = 50.0
    (result,) = Ranks(TernGrad(clip=2.5), 1, parameters_of(((100,),))).reduce([values])
    deviation = float(values.square().mean().sqrt())
    assert float(result.value.max()) == pytest.approx(2.5 * deviation, rel=1e-6)
    with pytest.raises(TextError, match=r"clip is -1\.0"):
        parse_strategy("terngrad(clip=-1.0)")
