"""A small model in training, attached to a scheduler that writes down what it is asked."""

from typing import Any

import torch
from torch import Tensor, nn
from turn_diary import Diary

from crossover import Extent
from crossover.integrations import Bond, Manner, plain

BATCH = torch.linspace(-1, 1, 12).reshape(4, 3)
TURN = ["acquire", "release"]
ASIDE = ["aside", "release"]
NEVER_S = 1e3  # a rest limit that no test comes to, however late a busy machine makes its next line


class Breaks(torch.autograd.Function):
    """A layer without a gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise RuntimeError("no gradient here")


class Job:
    """A small model in training, attached to a diary."""

    def __init__(
        self, extent: Extent = Extent.BACKWARD, *, defer: bool = False, rest_limit_s: float = NEVER_S, **hyper: Any
    ) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), **{"lr": 0.5, "momentum": 0.9, **hyper})
        self.diary = Diary(extent)
        manner = Manner(defer=defer, rest_limit_s=rest_limit_s)
        self.bond: Bond = plain.bind((self.model,), (self.optimizer,), self.diary, manner)

    @property
    def events(self) -> list[str]:
        return self.diary.events

    @property
    def first(self) -> Tensor:
        """A parameter, read behind torch's back."""
        return self.model[0].weight.detach().clone()

    def backward(self) -> None:
        self.model(BATCH).square().sum().backward()

    def put_off_a_step(self) -> Tensor:
        """The first parameter before the update, which is due now."""
        self.backward()
        self.optimizer.step()
        self.events.clear()
        return self.first
