"""Models of a few hundred parameters with everything that is awkward about real ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.lockstep.ranks import Arrivals, Lockstep

NUM_INPUTS = 6


class Awkward(nn.Module):
    """A tied weight, a layer used twice, BatchNorm, an unused parameter, and one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(NUM_INPUTS, 5)
        self.twice = nn.Linear(5, 5)
        self.norm = nn.BatchNorm1d(5)
        self.unused = nn.Parameter(torch.randn(3))
        self.transposed = nn.Parameter(torch.randn(5, 7).t())
        self.leave = nn.Linear(5, NUM_INPUTS, bias=False)
        self.leave.weight = nn.Parameter(torch.randn(NUM_INPUTS, 5))
        self.decode = nn.Linear(5, NUM_INPUTS, bias=False)
        self.decode.weight = self.leave.weight

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = functional.relu(self.twice(functional.relu(self.twice(self.enter(inputs)))))
        mixed = functional.linear(self.norm(hidden), self.transposed)[:, :5]
        outputs: Tensor = self.leave(hidden) + self.decode(mixed)
        return outputs


def awkward(seed: int = 0) -> Awkward:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Awkward()


def inputs_of(step: int, rank: int) -> Tensor:
    """A batch [4, NUM_INPUTS] set by its arguments alone."""
    return torch.randn(4, NUM_INPUTS, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_at(step: int) -> Callable[[int, nn.Module], Tensor]:
    def loss(rank: int, model: nn.Module) -> Tensor:
        batch = inputs_of(step, rank)
        return functional.mse_loss(model(batch), batch)

    return loss


def random_arrivals(ranks: Lockstep, seed: int) -> Arrivals:
    events = [(rank, name) for rank, own in enumerate(ranks.parameters) for name in own]
    random.Random(seed).shuffle(events)
    return events


def averaged_sgd(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """The plainest synchronous SGD: the mean of all gradients, then every rank's update."""
    for rank, model in enumerate(models):
        loss_at(step)(rank, model).backward()
    for same in zip(*(model.parameters() for model in models), strict=True):
        mean = torch.stack([torch.zeros_like(p) if p.grad is None else p.grad for p in same]).mean(0)
        for parameter in same:
            parameter.grad = mean.clone()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
