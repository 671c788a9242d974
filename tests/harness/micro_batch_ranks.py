"""Two ranks a scenario: a small network trained by `harness.loop` under one system, its weights written down.

    python micro_batch_ranks.py FOLDER SCENARIO...

A scenario is JSON: `{"system": …, "strategy": …, "accumulate": …, "clip_norm": …}`. For the n-th, rank r writes
FOLDER/n-r.json: a list of all weights and one of the losses. A step has the same samples whatever `accumulate` is.
FOLDER/reference.json has, by clip norm, what one process with all samples in one batch ends with.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from baselines.strategy import parse_strategy
from crossover import Alone
from fabric.api import Host
from harness.garbage import lasting
from harness.loop import Schedule, train
from harness.systems import system_of
from harness.systems.api import Preloads, RankSeat
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


def run_rank(asked: dict[str, Any], rank: int, store: Path) -> dict[str, list[float]]:
    dist.init_process_group("gloo", store=dist.FileStore(str(store), NUM_RANKS), rank=rank, world_size=NUM_RANKS)
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
    model = network()
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
    """Weights after all steps, and the gradient's norm before clipping, by step."""
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
    return [float(w) for parameter in model.parameters() for w in parameter.detach().view(-1)]


def fork_rank(asked: dict[str, Any], rank: int, folder: Path, number: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        told = run_rank(asked, rank, folder / f"store-{number}")
        (folder / f"{number}-{rank}.json").write_text(json.dumps(told))
        code = 0
    except BaseException:  # noqa: BLE001  the process ends here
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(folder: Path, scenarios: list[str]) -> int:
    asked = [json.loads(scenario) for scenario in scenarios]
    with lasting():
        for one in asked:
            system = system_of(one.get("system", "ours"))
            if isinstance(system, Preloads):
                system.preload()
        clip_norms = {one.get("clip_norm") for one in asked}
        told = {str(clip_norm): reference(clip_norm) for clip_norm in clip_norms}  # torch imports the rest
    (folder / "reference.json").write_text(json.dumps(told))
    for number, one in enumerate(asked):
        pids = [fork_rank(one, rank, folder, number) for rank in range(NUM_RANKS)]
        statuses = [os.waitpid(pid, 0)[1] for pid in pids]
        if any(statuses):
            print(f"failed: {scenarios[number]}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
