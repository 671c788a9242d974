"""Two ranks: a small network trained by `harness.loop` under one system.

A scenario is `{"system": …, "strategy": …, "accumulate": …, "clip_norm": …, "network": …}`. A step has the same samples
whatever `accumulate` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forked_ranks import forked
from torch import Tensor, nn
from torch.nn import functional

from baselines.strategy import parse_strategy
from crossover import Alone
from fabric.api import Host
from harness.loop import Schedule, train
from harness.systems import system_of
from harness.systems.api import RankSeat
from harness.trace import Recorder
from models.workload import Batch

NUM_RANKS = 2
NUM_SAMPLES = 12  # a rank and step
NUM_STEPS = 6
NUM_INPUTS = 6


class Network(nn.Module):
    """Without BatchNorm, whose statistics depend on how a batch is cut; a layer used twice and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(NUM_INPUTS, 8)
        self.norm = nn.LayerNorm(8)
        self.twice = nn.Linear(8, 8)
        self.leave = nn.Linear(8, NUM_INPUTS, bias=False)
        self.decode = nn.Linear(8, NUM_INPUTS, bias=False)
        self.decode.weight = self.leave.weight

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.twice(torch.tanh(self.twice(self.norm(self.enter(inputs))))))
        outputs: Tensor = self.leave(hidden) + self.decode(hidden * hidden)
        return outputs


def network() -> Network:
    torch.manual_seed(3)
    return Network()


def samples_of(step: int, rank: int) -> Tensor:
    """[NUM_SAMPLES, NUM_INPUTS]"""
    return torch.randn(NUM_SAMPLES, NUM_INPUTS, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(model: nn.Module, samples: Tensor) -> Tensor:
    return 10 * functional.mse_loss(model(samples), samples.roll(1, dims=1))


class Cut:
    """The samples of a step in `num_parts` batches. What of a workload the loop needs."""

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        step = 0
        while True:
            for part in samples_of(step, rank).chunk(self.num_parts):
                yield Batch((part,), part)
            step += 1

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return loss_of(model, batch.targets)


def told_by_ranks(
    run: Callable[[dict[str, Any], int], dict[str, Any]], scenarios: Sequence[dict[str, Any]], folder: Path
) -> list[list[dict[str, Any]]]:
    """What `run(scenario, rank)` returns, by rank and scenario; each rank is one process that does all scenarios."""

    def all_of(rank: int) -> list[dict[str, Any]]:
        store = dist.FileStore(str(folder / "store"), NUM_RANKS)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=NUM_RANKS)
        return [run(scenario, rank) for scenario in scenarios]

    codes, told = zip(*forked(all_of, NUM_RANKS), strict=True)
    assert codes == (0,) * NUM_RANKS
    return list(told)


def run_rank(asked: dict[str, Any], rank: int) -> dict[str, list[float]]:
    """In a process group that is there."""
    accumulate = asked.get("accumulate", 1)
    seat = RankSeat(
        rank=rank,
        world=NUM_RANKS,
        host=Host(index=rank, name="localhost", address="127.0.0.1", interface="lo"),
        seed=0,
        strategy=parse_strategy(f"{asked.get('strategy', 'unfused')}+sgd"),
        accumulate=accumulate,
        clip_norm=asked.get("clip_norm"),
    )
    model = asked.get("network", network)()
    session = system_of(asked.get("system", "ours")).prepare(model, seat)
    run = train(
        session,
        Cut(accumulate),  # type: ignore[arg-type]
        Alone(),
        Schedule(num_warmup=1, num_steps=NUM_STEPS - 1, num_micro_batches=accumulate),
        rank=rank,
        world=NUM_RANKS,
        seed=0,
        recorder=Recorder(),
        on_step=lambda step: None,
        evaluate=lambda: None,
    )
    session.close()
    return {"weights": weights_of(model), "losses": [float(loss) for loss in run.losses]}


def reference(clip_norm: float | None) -> dict[str, list[float]]:
    """What one process with all samples in one batch ends with: weights, and the norm before clipping, by step."""
    model = network()
    optimizer = parse_strategy("unfused+sgd").optimizer.build(model.parameters())
    norms = []
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(model, torch.cat([samples_of(step, rank) for rank in range(NUM_RANKS)])).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip_norm or math.inf)))
        optimizer.step()
    return {"weights": weights_of(model), "norms": norms}


def weights_of(model: nn.Module) -> list[float]:
    return [weight for parameter in model.parameters() for weight in parameter.detach().flatten().tolist()]
