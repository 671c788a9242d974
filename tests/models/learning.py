"""A workload trained for real, in one process."""

from __future__ import annotations

from itertools import islice

import torch

from models.workload import Evaluation, Workload


def learn(workload: Workload, learning_rate: float, num_steps: int) -> tuple[Evaluation, Evaluation]:
    """Held-out loss and accuracy before and after so many steps of Adam; the model is left in training mode."""
    model = workload.build_model(0)
    before = workload.evaluate(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for batch in islice(workload.batches(0, 1, 0), num_steps):
        optimizer.zero_grad()
        workload.loss(model, batch).backward()
        optimizer.step()
    after = workload.evaluate(model)
    assert before is not None
    assert after is not None
    assert model.training
    return before, after
