"""What a worker pushes when it compresses: its own update in the compressor's code, error fed back by itself.

The compressor runs as if the worker were alone, so servers add what can be read of its code. Residuals and random
numbers are each worker's own. What servers answer is not compressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from baselines.api import Aggregate, Aggregated, Compressor, Context, Message, NeedsCosts, Packing, Reduced, State
from harness.engine.checkpoint import Saved, restore_states, saved_states
from harness.engine.dispatch import make_plan
from harness.engine.layout import lay_out, rank_generator


@dataclass(slots=True)
class WorkerCodes:
    """`compressor` for `num_workers` workers that push updates of `parameters`, in messages as `packing` has them."""

    compressor: Compressor
    packing: Packing
    parameters: Mapping[str, nn.Parameter]
    num_workers: int
    seed: int = 0
    _states: list[dict[str, State]] = field(init=False)
    _generators: list[torch.Generator] = field(init=False)
    _messages: tuple[Message, ...] = field(init=False)

    def __post_init__(self) -> None:
        self._states = [
            {name: self.compressor.init(name, parameter) for name, parameter in self.parameters.items()}
            for _ in range(self.num_workers)
        ]
        self._generators = [rank_generator(self.seed, worker) for worker in range(self.num_workers)]
        segments = lay_out(self.parameters, list(self.parameters))
        fixed = self.packing.rank_invariant and not isinstance(self.packing, NeedsCosts)
        # An update is there as a whole: a packing that looks at times or at other ranks has nothing to look at.
        self._messages = make_plan(self.packing, segments) if fixed else (Message(0, segments),)

    def encode(self, worker: int, clock: int, update: Tensor) -> tuple[Tensor, float]:
        """What servers can read of `update` [numel], and the bytes of its code."""
        parts = dict(zip(self.parameters, update.split([p.numel() for p in self.parameters.values()]), strict=True))
        result, num_bytes = {name: torch.empty_like(part) for name, part in parts.items()}, 0.0
        for message in self._messages:
            flat = torch.cat([parts[own.name][own.start : own.stop] for own in message.segments])
            value, sent = self._alone(worker, clock, message, flat)
            num_bytes += sent
            pieces = value.split([own.numel for own in message.segments])
            for own, piece in zip(message.segments, pieces, strict=True):
                result[own.name][own.start : own.stop] = piece
        return torch.cat(list(result.values())), num_bytes

    def _alone(self, worker: int, clock: int, message: Message, flat: Tensor) -> tuple[Tensor, float]:
        # A world of one: the compressor sees no other rank, and its mean is its own part.
        ctx = Context(0, 1, clock, message, self._generators[worker])
        states = {own.name: self._states[worker][own.name] for own in message.segments}
        # Compressors may overwrite what they are given.
        steps = self.compressor.reduce(flat.clone(), states, ctx)
        num_bytes, answer = 0, None
        while True:
            try:
                asked: Aggregate = steps.send(answer) if answer is not None else next(steps)
            except StopIteration as end:
                reduced: Reduced = end.value
                return reduced.value, float(num_bytes)
            num_bytes += sum(part.numel() * part.element_size() for part in asked.payload)
            answer = Aggregated((asked.payload,))

    def state_dict(self) -> Saved:
        """Residuals and generators, for `torch.save`."""
        return {
            "states": [saved_states(own) for own in self._states],
            "generators": [own.get_state() for own in self._generators],
        }

    def load_state_dict(self, saved: Saved) -> None:
        """Go on from what `state_dict` gave. Raises: CheckpointError if another compressor wrote it."""
        for states, kept in zip(self._states, saved["states"], strict=True):
            restore_states(states, kept, self.parameters)
        for generator, kept in zip(self._generators, saved["generators"], strict=True):
            generator.set_state(kept)
