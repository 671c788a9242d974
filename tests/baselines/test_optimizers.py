"""Truncated gradient and Adam with a frozen second moment: their operators, their limits, any part of a model alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from baselines.api import Scope
from baselines.optimizer.frozen_adam import FrozenAdam
from baselines.optimizer.lamb import Lamb
from baselines.optimizer.lars import Lars
from baselines.optimizer.linear_scaling import LinearScaling
from baselines.optimizer.truncated_gradient import TruncatedGradient, truncated
from baselines.strategy import parse_strategy
from baselines.text import TextError

NUM_STEPS = 8
WEIGHTS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=20)


def gradient(step: int, numel: int = 12) -> Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(step))


def weights_after(
    build: Callable[[list[Tensor]], torch.optim.Optimizer], num_steps: int, parts: tuple[int, ...] = (12,)
) -> list[Tensor]:
    """Weights [12] after each step, kept in parameters of these sizes with an optimizer each."""
    start = torch.linspace(-1.0, 1.0, sum(parts))
    parameters = [nn.Parameter(part.clone()) for part in start.split(list(parts))]
    optimizers = [build([parameter]) for parameter in parameters]
    seen = []
    for step in range(num_steps):
        for parameter, grad, optimizer in zip(parameters, gradient(step).split(list(parts)), optimizers, strict=True):
            parameter.grad = grad.clone()
            optimizer.step()
        seen.append(torch.cat([parameter.detach().clone() for parameter in parameters]))
    return seen


# ---- truncated gradient


def test_truncation_of_hand_written_weights() -> None:
    weights = torch.tensor([0.05, -0.05, 0.3, -0.3, 0.5, -0.5, 0.51, -0.51, 0.0, 0.1])
    drawn = truncated(weights, 0.1, 0.5)
    expected = [0.0, 0.0, 0.2, -0.2, 0.4, -0.4, 0.51, -0.51, 0.0, 0.0]
    assert drawn.tolist() == pytest.approx(expected, abs=1e-7)  # float32


@given(weights=WEIGHTS, pull=st.floats(0, 5, width=32), threshold=st.floats(0, 12) | st.just(math.inf))
def test_truncation_never_crosses_zero_and_moves_by_the_pull_at_most(
    weights: list[float], pull: float, threshold: float
) -> None:
    before = torch.tensor(weights)
    after = truncated(before, pull, threshold)
    assert bool((after * before >= 0).all())
    assert bool((after.abs() <= before.abs()).all())
    moved = (before - after).abs()
    expected = torch.where(before.abs() <= threshold, before.abs().clamp(max=pull), torch.zeros(()))
    assert torch.allclose(moved, expected, atol=2e-6)  # two roundings of numbers up to 10 in float32


def test_with_an_infinite_threshold_every_weight_is_drawn() -> None:
    rule = parse_strategy("truncated-gradient(lr=0.1, gravity=1.0, every=1, threshold=1e30)").optimizer
    assert isinstance(rule, TruncatedGradient)
    (weights,) = weights_after(rule.build, 1)
    plain = torch.linspace(-1, 1, 12) - 0.1 * gradient(0)
    assert torch.allclose(weights, plain.sign() * (plain.abs() - 0.1).clamp(min=0), atol=1e-7)
    assert bool((weights == 0).any())


@pytest.mark.parametrize("every", [1, 3])
def test_weights_are_drawn_after_every_kth_step_by_k_times_the_gravity(every: int) -> None:
    rule = TruncatedGradient(lr=0.1, gravity=0.2, every=every, threshold=1.0)
    own = torch.linspace(-1.0, 1.0, 12)
    for step, weights in enumerate(weights_after(rule.build, NUM_STEPS), start=1):
        own = own - 0.1 * gradient(step - 1)
        if step % every == 0:
            own = truncated(own, 0.1 * 0.2 * every, 1.0)
        assert torch.allclose(weights, own, atol=1e-6)  # SGD adds in place, in another order of roundings
        own = weights


def test_without_gravity_it_is_sgd_bit_for_bit() -> None:
    rule = TruncatedGradient(lr=0.1, gravity=0.0, every=2, threshold=math.inf)
    plain = weights_after(lambda own: torch.optim.SGD(own, lr=0.1), NUM_STEPS)
    for mine, theirs in zip(weights_after(rule.build, NUM_STEPS), plain, strict=True):
        assert torch.equal(mine, theirs)


def test_a_model_that_needs_few_inputs_keeps_few_weights() -> None:
    """Least squares with 2 of 40 inputs that matter: the others' weights become exactly 0, with SGD none does."""
    dice = torch.Generator().manual_seed(5)
    inputs = torch.randn(400, 40, generator=dice)
    targets = inputs[:, 0] - 2 * inputs[:, 1] + 0.1 * torch.randn(400, generator=dice)

    def num_zeros(gravity: float) -> tuple[int, float]:
        weights = nn.Parameter(torch.zeros(40))
        optimizer = TruncatedGradient(lr=0.02, gravity=gravity, every=5, threshold=math.inf).build([weights])
        for step in range(200):
            rows = slice(8 * step % 400, 8 * step % 400 + 8)
            optimizer.zero_grad()
            ((inputs[rows] @ weights - targets[rows]) ** 2).mean().backward()
            optimizer.step()
        error = float(((inputs @ weights.detach() - targets) ** 2).mean())
        return int((weights == 0).sum()), error

    (dense, _), (sparse, error) = num_zeros(0.0), num_zeros(0.2)
    assert dense == 0
    assert sparse >= 20
    assert error < 0.1 * float((targets**2).mean())


# ---- frozen Adam


def theirs(own: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(own, lr=0.01, foreach=False)


def test_until_it_freezes_it_is_torchs_adam() -> None:
    rule = FrozenAdam(lr=0.01, freeze_after=5)
    mine, adams = weights_after(rule.build, NUM_STEPS), weights_after(theirs, NUM_STEPS)
    for own, adam in zip(mine[:5], adams, strict=False):
        assert torch.allclose(own, adam, rtol=0, atol=1e-7)  # float32 of weights up to 1
    assert not torch.allclose(mine[-1], adams[-1], rtol=0, atol=1e-5)


def test_frozen_it_follows_the_formula_with_the_correction_of_the_last_warm_step() -> None:
    num_warm, lr = 3, 0.01
    rule = FrozenAdam(lr=lr, freeze_after=num_warm, floor=0.0)
    own, mean, square = torch.linspace(-1.0, 1.0, 12).double(), torch.zeros(12).double(), torch.zeros(12).double()
    for step, weights in enumerate(weights_after(rule.build, 40), start=1):
        grad = gradient(step - 1).double()
        mean = 0.9 * mean + 0.1 * grad
        if step <= num_warm:
            square = 0.999 * square + 0.001 * grad**2
        corrected = square / (1 - 0.999 ** min(step, num_warm))
        own = own - lr * mean / (1 - 0.9**step) / (corrected.sqrt() + 1e-8)
        assert torch.allclose(weights.double(), own, atol=1e-5)  # 40 steps in float32


def test_frozen_steps_are_linear_in_the_gradient() -> None:
    """Ten times the gradient is ten times the step, once m has no memory; Adam's step stays as it is."""

    def last_step(factor: float) -> Tensor:
        weight = nn.Parameter(torch.zeros(12))
        optimizer = FrozenAdam(beta1=0.0, freeze_after=3).build([weight])
        for step in range(4):
            before = weight.detach().clone()
            weight.grad = gradient(step) * (factor if step == 3 else 1.0)
            optimizer.step()
        return weight.detach() - before

    assert torch.allclose(last_step(10.0), 10 * last_step(1.0), rtol=1e-3)


# ---- both


@pytest.mark.parametrize("rule", [TruncatedGradient(every=3, gravity=0.1), FrozenAdam(freeze_after=3, floor=0.0)])
def test_parts_stepped_alone_are_as_the_whole(rule: Any) -> None:
    """As on servers and at pre-hooks; a parameter without a gradient stays and does not count the step."""
    assert rule.scope is Scope.ELEMENT
    whole, parts = weights_after(rule.build, NUM_STEPS), weights_after(rule.build, NUM_STEPS, (1, 4, 7))
    assert torch.equal(whole[-1], parts[-1])
    idle = nn.Parameter(torch.full((3,), 0.05))
    rule.build([idle]).step()
    assert idle.tolist() == pytest.approx([0.05] * 3)


@pytest.mark.parametrize("text", ["truncated-gradient(every=2, gravity=0.1)", "frozen-adam(freeze_after=2, floor=0.0)"])
@pytest.mark.parametrize("how", ["unfused+parameter-server(update='server')", "unfused+at-pre-hook"])
def test_servers_and_pre_hooks_train_as_after_all(how: str, text: str) -> None:
    from harness.lockstep.ranks import Lockstep, replicas

    def trained(strategy: str) -> Tensor:
        torch.manual_seed(1)
        ranks = Lockstep(replicas(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)), 2), parse_strategy(strategy))
        for step in range(5):
            ranks.step(lambda rank, model, step=step: model(gradient(2 * step + rank, 10).view(2, 5)).square().mean())
        return torch.cat([p.detach().view(-1) for p in ranks.models[1].parameters()])

    assert torch.equal(trained(f"{how}+{text}"), trained(f"unfused+{text}"))


@pytest.mark.parametrize("rule", [TruncatedGradient(every=3, gravity=0.1), FrozenAdam(freeze_after=3, floor=0.0)])
def test_a_checkpoint_goes_on_where_it_was(rule: Any) -> None:
    whole = weights_after(rule.build, NUM_STEPS)[-1]
    first = nn.Parameter(torch.linspace(-1.0, 1.0, 12))
    before = rule.build([first])
    for step in range(4):
        first.grad = gradient(step)
        before.step()
    second = nn.Parameter(first.detach().clone())
    after = rule.build([second])
    after.load_state_dict(before.state_dict())
    for step in range(4, NUM_STEPS):
        second.grad = gradient(step)
        after.step()
    assert torch.equal(second.detach(), whole)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("rule", [FrozenAdam(freeze_after=5), Lamb(), Lars(), LinearScaling(Lamb(), times=4.0)])
def test_16_bit_parameters_go_on_from_a_file_bit_for_bit(rule: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    """Their moments are float32, and torch would load them in the parameters' format."""

    def named(weights: Tensor) -> dict[str, nn.Parameter]:
        return {"matrix": nn.Parameter(weights[:12].view(3, 4).clone()), "bias": nn.Parameter(weights[12:].clone())}

    def step(parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer, number: int) -> None:
        for parameter, grad in zip(parameters.values(), gradient(number, 16).split([12, 4]), strict=True):
            parameter.grad = grad.view_as(parameter).to(dtype)
        optimizer.step()

    first = named(torch.linspace(-1.0, 1.0, 16).to(dtype))
    before = rule.build(first.items())
    for number in range(4):
        step(first, before, number)
    torch.save(before.state_dict(), tmp_path / "optimizer.pt")
    second = named(torch.cat([parameter.detach().view(-1) for parameter in first.values()]))
    after = rule.build(second.items())
    after.load_state_dict(torch.load(tmp_path / "optimizer.pt"))
    for number in range(4, NUM_STEPS):
        step(first, before, number)
        step(second, after, number)
    for name, parameter in first.items():
        assert torch.equal(parameter, second[name])
        for key, kept in before.state[parameter].items():
            assert torch.as_tensor(kept).dtype == torch.as_tensor(after.state[second[name]][key]).dtype
            assert torch.equal(torch.as_tensor(kept), torch.as_tensor(after.state[second[name]][key]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("truncated-gradient(gravity=-1.0)", "gravity is -1.0; use 0"),
        ("truncated-gradient(every=0)", "every is 0; weights are drawn after every 1, 2"),
        ("truncated-gradient(threshold=-1.0)", "threshold is -1.0; use 0 or more"),
        ("truncated-gradient(lr=0.0)", "lr is 0.0; use a learning rate above 0"),
        ("frozen-adam(freeze_after=0)", "freeze_after is 0; the second moment needs at least 1 step"),
        ("frozen-adam(floor=1.5)", "floor is 1.5; use a share of the mean from 0"),
        ("frozen-adam(beta2=1.0)", "beta2 is 1.0; use 0 or more and less than 1"),
        ("frozen-adam(eps=0.0)", "both must be above 0"),
    ],
)
def test_wrong_settings_are_named(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message):
        parse_strategy(text)
