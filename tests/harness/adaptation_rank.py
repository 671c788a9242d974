"""One of two ranks on a real process group whose layers slow down."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from baselines.strategy import parse_strategy
from harness.engine.engine import Engine
from harness.engine.transport import ProcessGroupTransport
from harness.trace import Recorder

NUM_STEPS = 48  # bound at step 6, reviewed at 26 and 46
SLOW_FROM = 26
NUM_LAYERS = 4


class Waits(torch.autograd.Function):
    """Identity whose backward takes the seconds that its layer says."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: SleepyLayer) -> Tensor:
        ctx.layer = layer
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.layer.backward_s)
        return gradients[0], None


class SleepyLayer(nn.Module):
    """Linear, with a backward that takes at least `backward_s` before its gradients are ready."""

    def __init__(self, backward_s: float) -> None:
        super().__init__()
        self.backward_s = backward_s
        self.linear = nn.Linear(8, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.001)
        result: Tensor = Waits.apply(self.linear(inputs), self)
        return result


def run_rank(rank: int, store: Path) -> dict[str, Any]:
    """In a process of its own: what was bound, its plan and its weights."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.manual_seed(0)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=rank, world_size=2)
    model = nn.Sequential(*(SleepyLayer(0.002 * (1 + rank)) for _ in range(NUM_LAYERS)))
    strategy = parse_strategy("mg-wfbp")
    engine = Engine(model, strategy, ProcessGroupTransport.of(strategy), recorder=Recorder())
    for step in range(NUM_STEPS):
        if step == SLOW_FROM:
            for layer in model:
                layer.backward_s *= 4  # type: ignore[assignment, operator]
        loss = model(torch.randn(4, 8)).square().mean()
        engine.begin_step()
        loss.backward()
        engine.end_backward()
        engine.wait()
        for parameter in model.parameters():  # by hand: torch's optimizers take seconds to import
            assert parameter.grad is not None
            parameter.data.sub_(parameter.grad, alpha=0.01)
            parameter.grad = None
    told = {
        "adapted": [dataclasses.asdict(one) for one in engine.adapted],
        "plan": [[segment.name for segment in message.segments] for message in engine._plan],
        "backward_s": engine._adaptation.costs.backward_s,  # type: ignore[union-attr]
        "control_bytes": engine.traffic.wire_bytes["control"],
        "weights": [parameter.tolist() for parameter in model.parameters()],
    }
    engine.close()
    return told
