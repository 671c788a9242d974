"""A short training for `crossover verify`, and workers that only leave a digest.

python verified_script.py trains|different|unseeded|failing|unattached
"""

import os
import random
import sys

from crossover.attach import JOB
from crossover.digests import DIGESTS, write_digest


class Weights:
    """As much of a model as a digest needs."""

    def __init__(self, value: object) -> None:
        self._value = value

    def state_dict(self) -> dict[str, object]:
        """One entry, whose name is its value."""
        return {str(self._value): self._value}


def train() -> None:
    """What a user's script does."""
    import torch

    import crossover

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    crossover.attach(model, optimizer)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()


match sys.argv[1]:
    case "trains":
        train()
    case "different":
        write_digest(os.environ[DIGESTS], [Weights(JOB in os.environ)], 4)
    case "unseeded":
        write_digest(os.environ[DIGESTS], [Weights(random.random())], 4)
    case "failing":
        sys.exit(7)
