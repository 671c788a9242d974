"""The training loop: when a step ends."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from patience import patience_s
from torch import Tensor, nn

from crossover import Alone
from harness.loop import Run, Schedule, train
from harness.systems.api import PlainSession
from harness.trace import Recorder
from models.workload import Batch

DRAIN_S = patience_s(1.0)  # longer than any step, also one that waits for a core


class LateSession(PlainSession):
    """Applies nothing until the next forward, and at the end waits for what is under way."""

    def update(self) -> None:
        """Left to pre-hooks."""

    def finish(self) -> None:
        if self._due:
            time.sleep(DRAIN_S)
        super().update()


class Line:
    """Fits y = 0·x."""

    def batches(self, rank: int, world: int, seed: int) -> Iterator[Batch]:
        while True:
            yield Batch((torch.ones(4, 1),), torch.zeros(4, 1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return nn.functional.mse_loss(model(*batch.inputs), batch.targets)


def run_of(session: PlainSession, recorder: Recorder) -> Run:
    return train(
        session,
        Line(),  # type: ignore[arg-type]  # only what the loop asks of a workload
        Alone(),
        Schedule(num_warmup=1, num_steps=3),
        rank=0,
        world=1,
        seed=1,
        recorder=recorder,
        on_step=lambda step: None,
        evaluate=lambda: None,
    )


def test_what_is_left_of_the_last_steps_messages_is_in_no_step() -> None:
    """Under updates at the next forward they would hide behind it; there is none behind the last step."""
    model, recorder = nn.Linear(1, 1), Recorder()
    run = run_of(LateSession(model, torch.optim.SGD(model.parameters(), lr=0.1)), recorder)
    assert len(run.step_times_s()) == 4
    assert max(run.step_times_s()) < DRAIN_S
    assert run.end_s - run.measured_until_s >= DRAIN_S
    measured = recorder.between(run.measured_from_s, run.measured_until_s)
    assert measured.total_s("compute") < DRAIN_S  # nor is it computation
