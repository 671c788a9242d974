"""What a server of a parameter server keeps where it steps the optimizer: its shards of the parameters.

A strategy whose exchange steps the optimizer on servers asks for a `Serve` between push and pull. A server keeps the
values and the optimizer's state of its part of each message; workers take what comes back in place of a gradient, and
`Adopt` it where they would step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Message, OptimizerSpec, Parameters, Scope, Serve, Slot
from baselines.stepping import TensorwiseOptimizer
from harness.engine.checkpoint import Saved

Piece = tuple[str, int, int]  # elements start:stop of a flattened parameter


class ServingError(RuntimeError):
    """A server cannot go on with what it is asked to update: a defect of the packing or of the engine."""


@dataclass(slots=True)
class _Shard:
    """Values [numel of the pieces] with their optimizer, stepped `version` times."""

    values: Tensor
    optimizer: torch.optim.Optimizer
    version: int = 0


@dataclass(slots=True)
class Shards:
    """What one server keeps, by the pieces of its part of each message.

    `parameters` are those of the rank's model and give the initial values. The optimizer is element-wise, so any part
    may be stepped on its own.
    """

    parameters: Mapping[str, Tensor]
    optimizer: OptimizerSpec
    _shards: dict[tuple[Piece, ...], _Shard] = field(default_factory=dict)

    @property
    def num_elements(self) -> int:
        """Elements that this server keeps."""
        return sum(shard.values.numel() for shard in self._shards.values())

    def step(self, message: Message, serve: Serve, version: int) -> Tensor:
        """The values of the served elements after step `version` (from 0): one update a version.

        Raises: ServingError if these elements were not updated in every version before.
        """
        pieces = pieces_of(message, serve.start, serve.grad.numel())
        # More servers than elements: this one has nothing of the message.
        if not pieces:
            return serve.grad
        # Taken when a message is first seen: only then is it known which elements come to this server.
        if version == 0:
            values = torch.cat([self.parameters[n].detach().reshape(-1)[a:b] for n, a, b in pieces])
            self._shards[pieces] = _Shard(values, self.optimizer.build([values]))
        shard = self._shards.get(pieces)
        if shard is None or shard.version != version:
            seen = "never" if shard is None else f"{shard.version} times"
            raise ServingError(
                f"a server is to make version {version + 1} of {pieces[0][0]}[{pieces[0][1]}:{pieces[0][2]}] and has "
                f"updated it {seen}; the packing must make the same messages every step"
            )
        shard.values.grad = serve.grad.view(-1)
        shard.optimizer.step()
        # The next message may use this memory again, so the optimizer must not hold on to it.
        shard.values.grad = None
        shard.version += 1
        return shard.values

    def state_dict(self) -> list[Saved]:
        """What the server keeps, for a checkpoint."""
        return [
            {
                "pieces": [list(piece) for piece in pieces],
                "values": shard.values.clone(),
                "optimizer": copy.deepcopy(shard.optimizer.state_dict()),
                "version": shard.version,
            }
            for pieces, shard in self._shards.items()
        ]

    def load_state_dict(self, saved: Iterable[Saved]) -> None:
        """Go on from what `state_dict` gave."""
        self._shards.clear()
        for one in saved:
            pieces = tuple((name, start, stop) for name, start, stop in one["pieces"])
            values = one["values"].to(self.parameters[pieces[0][0]].device, copy=True)
            optimizer = self.optimizer.build([values])
            optimizer.load_state_dict(one["optimizer"])
            self._shards[pieces] = _Shard(values, optimizer, one["version"])


def pieces_of(message: Message, start: int, numel: int) -> tuple[Piece, ...]:
    """Which elements of which parameters are the elements `start : start + numel` of the flattened message."""
    pieces, offset = [], 0
    for segment in message.segments:
        low, high = max(start, offset), min(start + numel, offset + segment.numel)
        if low < high:
            pieces.append((segment.name, segment.start + low - offset, segment.start + high - offset))
        offset += segment.numel
    return tuple(pieces)


@dataclass(frozen=True, slots=True)
class Adopt:
    """What a worker does in place of a step where servers have done it. No plug-in: the engine's own."""

    card: ClassVar[Card] = Card(
        name="adopt", slot=Slot.OPTIMIZER, summary="takes the servers' parameters", paper="Li et al., OSDI 2014"
    )

    @property
    def scope(self) -> Scope:
        """Any part of a parameter can be adopted by itself."""
        return Scope.ELEMENT

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """An optimizer whose step copies `grad` into each parameter; it keeps no state."""
        return TensorwiseOptimizer(parameters, lambda weights, grad, *_: weights.copy_(grad))
