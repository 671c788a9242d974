"""An ordinary Horovod training script with one more line, which tells when its steps ended; `horovod_pair.py` runs it.

A small convolutional network on scikit-learn's digits, computation about as long as its gradients' way over a link of
200 Mbit/s. Started by `crossover run` it takes turns; started otherwise it trains as ever.
"""

import argparse
import copy
import hashlib
import json
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from sklearn.datasets import load_digits
from torch import nn

import crossover


def network(width: int) -> nn.Module:
    """Two convolutions that compute and a layer that weighs: `width`·64·128 + … parameters."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * 64, 192),
        nn.ReLU(),
        nn.Linear(192, 10),
    )


def exchange_s(model: nn.Module, count: int = 6) -> float:
    """Seconds that the gradients' way takes with no computation beside: the median of some."""
    gradients = [torch.zeros_like(parameter) for parameter in model.parameters()]
    times_s = []
    for _ in range(count):
        hvd.allreduce(torch.zeros(1), name="together")
        start_s = time.monotonic()
        hvd.grouped_allreduce_(gradients, name="alone")
        times_s.append(time.monotonic() - start_s)
    return sorted(times_s[1:])[len(times_s) // 2]


def compute_s(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, count: int = 6) -> float:
    """Seconds of a step with no communication: the median of some."""
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.05, momentum=0.9)
    times_s = []
    for _ in range(count):
        start_s = time.monotonic()
        optimizer.zero_grad()
        nn.functional.cross_entropy(alone(images), labels).backward()
        optimizer.step()
        times_s.append(time.monotonic() - start_s)
    return sorted(times_s[1:])[len(times_s) // 2]


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=640)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True, help="folder for rank N's JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    hvd.init()
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    order = torch.Generator().manual_seed(1000 * given.seed + hvd.rank())

    model = network(given.width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    attachment = crossover.attach(model, optimizer)

    ends_s = []
    for _ in range(given.steps):
        chosen = torch.randint(len(labels), (given.batch,), generator=order)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
        ends_s.append(time.monotonic())

    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    attachment.close()
    told = {
        "ends_s": ends_s,
        "turns": [(span.asked_s, span.waited_s, span.held_s) for span in attachment.spans],
        "compute_s": compute_s(model, images[chosen], labels[chosen]),
        "exchange_s": exchange_s(model),
        "loss": float(loss.detach()),
        "weights": hashlib.sha256(weights).hexdigest(),
    }
    (given.out / f"rank{hvd.rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
