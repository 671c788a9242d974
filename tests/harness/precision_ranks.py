"""Two ranks: a small network trained with a scaled loss, steps of which overflow on rank 1 alone.

A scenario is `{"system": …, "strategy": …, "accumulate": …, "clip_norm": …, "scaled": …}`. Scaled, all steps are
trained, and in OVERFLOWS the last micro-batch but one (if there is one) of rank 1 has a loss that no float32 gradient
holds; else those steps are left out. Layers compute in float32, where a scale that is a power of two changes nothing,
so that both ways can be compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from micro_batch_ranks import NUM_RANKS, loss_of, network, samples_of, weights_of
from torch import Tensor, nn

from baselines.strategy import parse_strategy
from crossover import Alone
from fabric.api import Host
from harness.loop import Schedule, train
from harness.precision import Precision
from harness.systems import system_of
from harness.systems.api import RankSeat
from harness.systems.ours import EngineSession
from harness.trace import Recorder
from models.workload import Batch

NUM_STEPS = 7
OVERFLOWS = (2, 4)
HUGE = 1e36  # times 2¹⁶ no float32


class Overflowing:
    """What of a workload the loop needs: batches of (samples, factor of the loss)."""

    def __init__(self, num_parts: int, scaled: bool) -> None:
        self.num_parts, self.scaled = num_parts, scaled

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        step = 0
        while True:
            if self.scaled or step not in OVERFLOWS:
                for number, part in enumerate(samples_of(step, rank).chunk(self.num_parts)):
                    huge = rank == 1 and step in OVERFLOWS and number == max(0, self.num_parts - 2)
                    yield Batch((part,), torch.tensor(HUGE if huge else 1.0))
            step += 1

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return loss_of(model, batch.inputs[0]) * batch.targets


def run_rank(asked: dict[str, Any], rank: int) -> dict[str, Any]:
    """In a process group that is there."""
    accumulate, scaled = asked.get("accumulate", 1), asked["scaled"]
    seat = RankSeat(
        rank=rank,
        world=NUM_RANKS,
        host=Host(index=rank, name="localhost", address="127.0.0.1", interface="lo"),
        seed=0,
        strategy=parse_strategy(f"{asked.get('strategy', 'unfused')}+sgd"),
        accumulate=accumulate,
        clip_norm=asked.get("clip_norm"),
        precision=Precision.FLOAT16 if scaled else Precision.FLOAT32,
    )
    model = network()
    session = system_of(asked.get("system", "ours")).prepare(model, seat)
    train(
        session,
        Overflowing(accumulate, scaled),  # type: ignore[arg-type]
        Alone(),
        Schedule(
            num_warmup=1, num_steps=NUM_STEPS - 1 - (0 if scaled else len(OVERFLOWS)), num_micro_batches=accumulate
        ),
        rank=rank,
        world=NUM_RANKS,
        seed=0,
        recorder=Recorder(),
        on_step=lambda step: None,
        evaluate=lambda: None,
    )
    scale = session.loss_scale
    residuals: list[float] = []
    if isinstance(session, EngineSession):
        states = session._engine.states.values()
        residuals = [float(value) for state in states for tensor in state.values() for value in tensor.view(-1)]
    control = session.traffic.wire_bytes.get("control", 0.0) if session.traffic else 0.0
    session.close()
    return {
        "weights": weights_of(model),
        "residuals": residuals,
        "scale": scale.scale if scale else None,
        "num_skipped": scale.num_skipped if scale else 0,
        "control_bytes": control,
    }
