"""Real gradients for workers on the virtual clock: one model in memory, and each worker's own data and states.

A worker loads the parameters that it was given, computes on its own batch, and lets its own optimizer step. What it
pushes is the difference. For SGD, with momentum too, the mean of the workers' differences is the difference that the
mean gradient gives, so BSP equals synchronous training to float tolerance. Other optimizers keep one state per worker.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from harness.engine.checkpoint import Saved
from harness.engine.layout import TrainedParameters, trainable_parameters

Loss = Callable[[int, nn.Module], Tensor]  # of a worker's next batch
BYTES_PER_ELEMENT = 4
PUSHED = {"a push to servers": frozenset({torch.float32})}  # their frames hold float32


@dataclass(slots=True)
class _Own:
    """What a worker has to itself: its optimizer, its buffers (BatchNorm's statistics), its generator's state."""

    optimizer: torch.optim.Optimizer
    buffers: dict[str, Tensor]
    generator: Tensor


@dataclass(slots=True)
class Training:
    """`model` trained by `num_workers` workers; `loss(worker, model)` is called once per update.

    `build` makes an optimizer of named parameters. A worker takes one step between two pushes.
    """

    model: nn.Module
    build: Callable[[Iterable[tuple[str, Tensor]]], torch.optim.Optimizer]
    loss: Loss
    num_workers: int
    seed: int = 0
    losses: list[list[float]] = field(init=False)  # [workers][updates]
    _parameters: list[nn.Parameter] = field(init=False)
    _trained: TrainedParameters = field(init=False)
    _workers: list[_Own] = field(init=False)

    def __post_init__(self) -> None:
        self._parameters = list(trainable_parameters(self.model).values())
        self._trained = TrainedParameters(self.model)
        self.losses = [[] for _ in range(self.num_workers)]
        self._workers = [self._worker(worker) for worker in range(self.num_workers)]

    def _worker(self, worker: int) -> _Own:
        buffers = {name: value.clone() for name, value in self.model.named_buffers()}
        optimizer = self.build(trainable_parameters(self.model).items())
        return _Own(optimizer, buffers, torch.Generator().manual_seed(self.seed + worker).get_state())

    @property
    def values(self) -> Tensor:
        """The model's parameters as they are now [numel]."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])

    @property
    def num_bytes(self) -> int:
        """What a push or an answer carries, uncompressed."""
        return BYTES_PER_ELEMENT * sum(parameter.numel() for parameter in self._parameters)

    def load(self, values: Tensor, worker: int = 0) -> None:
        """Give the model these parameters [numel] and a worker's buffers, for a step or to evaluate it."""
        with torch.no_grad():
            parts = values.split([parameter.numel() for parameter in self._parameters])
            for parameter, part in zip(self._parameters, parts, strict=True):
                parameter.copy_(part.view_as(parameter))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self._workers[worker].buffers[name])

    def update(self, worker: int, clock: int, values: Tensor) -> Tensor:
        """What a worker's step from `values` [numel] changes [numel]. Raises: ParametersChangedError."""
        # Each worker draws from a generator of its own: dropout must not depend on who computed before.
        own, outer = self._workers[worker], torch.get_rng_state()
        torch.set_rng_state(own.generator)
        self.load(values, worker)
        own.optimizer.zero_grad()
        loss = self.loss(worker, self.model)
        self._trained.check()
        loss.backward()
        own.optimizer.step()
        # Running statistics are a worker's own, as they are in a process of its own.
        own.buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        own.generator = torch.get_rng_state()
        torch.set_rng_state(outer)
        self.losses[worker].append(float(loss.detach()))
        return self.values - values

    def num_drawn(self, worker: int) -> int:
        """How many batches `loss` has taken for a worker."""
        return len(self.losses[worker])

    def state_dict(self) -> Saved:
        """What the workers have to themselves, for `torch.save`; the data's own place is `num_drawn`."""
        return {"workers": [self.worker_state(worker) for worker in range(self.num_workers)]}

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave; `loss` has to go on after `num_drawn` batches of each worker."""
        for worker, kept in enumerate(saved["workers"]):
            self.load_worker_state(worker, kept)

    def worker_state(self, worker: int) -> Saved:
        """What one worker has to itself, for `torch.save`."""
        own = self._workers[worker]
        return {
            "losses": list(self.losses[worker]),
            "optimizer": copy.deepcopy(own.optimizer.state_dict()),
            "buffers": {name: buffer.clone() for name, buffer in own.buffers.items()},
            "generator": own.generator.clone(),
        }

    def load_worker_state(self, worker: int, saved: Saved) -> None:
        """Bring one worker to what `worker_state` gave."""
        own = self._workers[worker]
        self.losses[worker] = list(saved["losses"])
        own.optimizer.load_state_dict(saved["optimizer"])
        own.buffers, own.generator = dict(saved["buffers"]), saved["generator"]
