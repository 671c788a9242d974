"""1-bit Adam where elements get no gradient, or none before the freeze: a sign has no 0 and v may be 0 there."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from baselines.optimizer.frozen_adam import FrozenAdam
from baselines.strategy import parse_strategy
from harness.lockstep.ranks import Lockstep, replicas

LR, FREEZE = 0.001, 8
TEXT = f"onebit-adam(warmup_steps={FREEZE})+frozen-adam(freeze_after={FREEZE}, lr={LR})"
ROWS, WIDTH, NUM_USED = 60, 8, 20


class DeadUnits(nn.Module):
    """A ReLU network of which two hidden units never fire."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, 1)
        with torch.no_grad():
            self.first.bias[:2] = -100.0

    def loss(self, step: int, rank: int) -> Tensor:
        dice = torch.Generator().manual_seed(1000 * step + rank)
        inputs = torch.randn(32, WIDTH, generator=dice)
        return (self.last(self.first(inputs).relu()) - inputs[:, :1]).square().mean()


class UnusedRows(nn.Module):
    """Word vectors of which two thirds are in no sentence; `late` words come after the freeze alone."""

    def __init__(self, late: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.last = nn.Embedding(ROWS, WIDTH), nn.Linear(WIDTH, 1)
        self.late = late

    def loss(self, step: int, rank: int) -> Tensor:
        dice = torch.Generator().manual_seed(1000 * step + rank)
        num = NUM_USED * 2 if self.late and step >= FREEZE else NUM_USED
        words = torch.randint(num, (32,), generator=dice)
        return (self.last(self.words(words)).squeeze(1) - (words % 2).float()).square().mean()


def loss_at(step: int, rank: int, model: nn.Module) -> Tensor:
    assert isinstance(model, DeadUnits | UnusedRows)
    return model.loss(step, rank)


def losses(model: nn.Module, text: str, num_steps: int = 120) -> list[float]:
    ranks = Lockstep(replicas(model, 2), parse_strategy(text))
    return [float(sum(ranks.step(partial(loss_at, step)))) / 2 for step in range(num_steps)]


@pytest.mark.parametrize("build", [DeadUnits, UnusedRows, partial(UnusedRows, late=True)])
def test_elements_without_a_gradient_do_not_make_it_diverge(build: partial[nn.Module]) -> None:
    """The end lies within a third of uncompressed frozen-adam's: signs make noise, a division by 0 makes 1e6."""
    dense = losses(build(), f"frozen-adam(freeze_after={FREEZE}, lr={LR})")
    signs = losses(build(), TEXT)
    assert max(signs) <= 1.5 * max(dense)
    assert sum(signs[-20:]) <= 1.34 * sum(dense[-20:])


def test_rows_that_are_never_used_stay_where_they_are_to_a_few_learning_rates() -> None:
    """What signs add they take back, so moves are bounded by the largest one, lr/√floor; 2 for the servers' signs."""
    model = UnusedRows()
    before = model.words.weight.detach().clone()
    losses(model, TEXT)
    moved = (model.words.weight.detach() - before)[NUM_USED:].abs().max()
    assert float(moved) <= 2 * LR / FrozenAdam().floor ** 0.5


def test_no_step_divides_by_less_than_the_floor() -> None:
    """v is 1 for half of the elements and 0 for the others: their floor is 0.01 · 0.5, m of the first gradient 0.1."""
    weights = nn.Parameter(torch.zeros(10))
    optimizer = FrozenAdam(freeze_after=50, lr=LR, beta2=0.5).build([weights])
    before = weights.detach().clone()
    for step in range(51):
        before = weights.detach().clone()
        weights.grad = torch.zeros(10)
        weights.grad[: 10 if step == 50 else 5] = 1.0
        optimizer.step()
    moved = (before - weights.detach())[5:]
    assert moved.tolist() == pytest.approx([LR * 0.1 / (0.01 * 0.5) ** 0.5 / (1 - 0.9**51)] * 5, rel=1e-4)  # float32


def test_a_tensor_without_any_gradient_so_far_freezes_when_it_gets_one() -> None:
    weights = nn.Parameter(torch.zeros(4))
    optimizer = FrozenAdam(freeze_after=2, lr=LR).build([weights])
    for step in range(6):
        weights.grad = torch.ones(4) if step >= 4 else torch.zeros(4)
        optimizer.step()
        assert (
            float(weights.detach().abs().max()) <= 2 * 3.2 * LR
        )  # Adam's own bound of a step, lr·(1−β₁)/√(1−β₂), twice
