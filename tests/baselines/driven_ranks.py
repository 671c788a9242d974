"""Ranks that reduce step after step with states and dice of their own, for laws that need more than one message."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from baselines.api import Compressor, Context, Exchange, HasServers, Message, Reduced, Segment
from baselines.exchange.all_reduce import RingAllReduce
from harness.engine.reduction import MessageRun, Tagged, reduce_message
from harness.engine.traffic import sent_by
from harness.lockstep.collectives import perform


def parameters_of(shapes: Sequence[tuple[int, ...]]) -> tuple[Segment, ...]:
    """Whole parameters of these shapes, in ready order."""
    return tuple(Segment(f"p{i}", s, 0, int(torch.tensor(s).prod()), i) for i, s in enumerate(shapes))


class Ranks:
    """`world` ranks, of which the last ones only serve if the exchange says so. `sent` [world] counts payload bytes."""

    def __init__(
        self,
        compressor: Compressor,
        world: int,
        parameters: Sequence[Segment],
        *,
        exchange: Exchange | None = None,
        seed: int = 0,
    ) -> None:
        self.compressor, self.world, self.parameters = compressor, world, tuple(parameters)
        self.exchange = exchange or RingAllReduce()
        own = self.exchange
        self.num_workers = own.num_workers(world) if isinstance(own, HasServers) else world
        zeros = {parameter.name: torch.zeros(parameter.shape) for parameter in parameters}
        self.states = [{name: compressor.init(name, zero) for name, zero in zeros.items()} for _ in range(world)]
        self.generators = [torch.Generator().manual_seed(1000 * seed + rank) for rank in range(world)]
        self.sent, self.step = [0.0] * world, 0

    @property
    def numel(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)

    def reduce(self, grads: Sequence[Tensor], cuts: Sequence[Sequence[Segment]] | None = None) -> list[Reduced]:
        """One step: `grads` [numel], one a worker, divided by their number here; messages of these segments, or one.

        Returns each rank's result over all parameters, in order of the parameters.
        """
        idle = [torch.zeros(self.numel)] * (self.world - len(grads))
        flats = [grad / len(grads) for grad in grads] + [grad.clone() for grad in idle]
        values = [torch.full((self.numel,), torch.nan) for _ in flats]
        contributed = [torch.full((self.numel,), torch.nan) for _ in flats]
        ends = accumulate(p.numel for p in self.parameters)
        begins = {p.name: end - p.numel for p, end in zip(self.parameters, ends, strict=True)}
        for index, segments in enumerate(cuts or [self.parameters]):
            places = torch.cat([torch.arange(begins[s.name] + s.start, begins[s.name] + s.stop) for s in segments])
            reduced = self._message([flat[places] for flat in flats], Message(index, tuple(segments)))
            for rank, result in enumerate(reduced):
                values[rank][places] = result.value
                if result.contributed is not None:
                    contributed[rank][places] = result.contributed
        self.step += 1
        return [Reduced(value, part) for value, part in zip(values, contributed, strict=True)]

    def kept(self, rank: int, key: str) -> Tensor:
        """One state of all parameters [numel], in float64."""
        return torch.cat([self.states[rank][p.name][key] for p in self.parameters]).double()

    def _message(self, grads: Sequence[Tensor], message: Message) -> list[Reduced]:
        runs = [self._run(rank, grad, message) for rank, grad in enumerate(grads)]
        answers: list[object] = [None] * self.world
        while True:
            asked, results = self._ask(runs, answers)
            if results:
                return results
            primitives = [tagged.primitive for tagged in asked]
            self.sent = [n + sent_by(p, self.world).payload_bytes for n, p in zip(self.sent, primitives, strict=True)]
            answers = list(perform(primitives))

    def _run(self, rank: int, grad: Tensor, message: Message) -> MessageRun:
        ctx = Context(
            rank,
            self.world,
            self.step,
            message,
            self.generators[rank],
            wants_contribution=True,
            num_workers=self.num_workers,
        )
        return reduce_message(self.compressor, self.exchange, grad, self.states[rank], ctx)

    def _ask(self, runs: Sequence[MessageRun], answers: Sequence[object]) -> tuple[list[Tagged], list[Reduced]]:
        asked: list[Tagged] = []
        results: list[Reduced] = []
        for run, answer in zip(runs, answers, strict=True):
            try:
                asked.append(run.send(answer))  # type: ignore[arg-type]
            except StopIteration as end:
                results.append(end.value)
        assert not (asked and results), "some ranks are done and others are not"
        return asked, results
