"""The micro-benchmarks that costs come from, on one rank of the default process group.

Messages go through the engine itself, so a row holds all that a message costs: the threads that wake, packing, the
library, the network, and the other ranks of this machine doing the same. Every row starts at a barrier, and its
repeats follow each other, so the messages themselves keep the ranks together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from baselines.strategy import Strategy, parse_strategy
from harness.engine.engine import Engine
from harness.engine.transport import ProcessGroupTransport, Transport
from harness.lockstep.collectives import Room
from harness.trace import Recorder

if TYPE_CHECKING:
    from harness.lab.messages import Row

BETWEEN_S = 0.05
NUM_WARMUP = 2  # the first exchange agrees on the layout


def time_rows(rows: Sequence[Row], num_repeats: int) -> tuple[tuple[float, ...], ...]:
    """Seconds of every row, `num_repeats` times each after some that do not count."""
    return tuple(_PROBES[row.probe.value](row, num_repeats) for row in rows)


def _exchange(row: Row, num_repeats: int) -> tuple[float, ...]:
    strategy = parse_strategy(row.strategy)
    return _through_engine(row, strategy, ProcessGroupTransport.of(strategy), num_repeats)


def _engine(row: Row, num_repeats: int) -> tuple[float, ...]:
    """Without a network: the transport answers at once."""
    return _through_engine(row, parse_strategy(row.strategy), Room(1).seat(0), num_repeats)


def _through_engine(row: Row, strategy: Strategy, transport: Transport, num_repeats: int) -> tuple[float, ...]:
    engine = Engine(_model(row), strategy, transport, recorder=Recorder())
    try:
        return _timed(engine.exchange_once, num_repeats)
    finally:
        engine.close()


def _update(row: Row, num_repeats: int) -> tuple[float, ...]:
    parameters = list(_model(row).parameters())
    return _updates(parameters, [parse_strategy(row.strategy).optimizer.build(parameters)], num_repeats)


def _eager_update(row: Row, num_repeats: int) -> tuple[float, ...]:
    parameters = list(_model(row).parameters())
    optimizers = [parse_strategy(row.strategy).optimizer.build([parameter]) for parameter in parameters]
    return _updates(parameters, optimizers, num_repeats)


def _updates(
    parameters: Sequence[nn.Parameter], optimizers: Sequence[torch.optim.Optimizer], num_repeats: int
) -> tuple[float, ...]:
    def update() -> None:
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def refill() -> None:
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        sleep(BETWEEN_S)  # the caches are cold, as after a backward
        dist.barrier()  # all ranks update at the same time, as after a message to all

    return _timed(update, num_repeats, refill)


def _model(row: Row) -> nn.Module:
    model = nn.ParameterList(nn.Parameter(torch.zeros(max(1, row.num_bytes // 4))) for _ in range(row.num_tensors))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return model


def _timed(
    action: Callable[[], None], num_repeats: int, before: Callable[[], None] = lambda: None
) -> tuple[float, ...]:
    times_s = []
    dist.barrier()
    for _ in range(NUM_WARMUP + num_repeats):
        before()
        start_s = perf_counter()
        action()
        times_s.append(perf_counter() - start_s)
    return tuple(times_s[NUM_WARMUP:])


_PROBES: dict[str, Callable[[Row, int], tuple[float, ...]]] = {
    "exchange": _exchange,
    "engine": _engine,
    "update": _update,
    "eager-update": _eager_update,
}
