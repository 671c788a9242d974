"""What most compressors are: a code for a vector, which travels alone and is summed where it arrives.

A plug-in that is `Gathered` writes `encode` and `add_decoded` and has the rest of its way from here; `double-squeeze`
takes the same two functions through servers instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from baselines.api import (
    Aggregate,
    Aggregated,
    AllGather,
    AllToAll,
    Context,
    ExchangeRun,
    How,
    Payload,
    Reduced,
    Reduction,
    State,
    as_bytes,
    servers_of,
)
from baselines.memory import zeros


@runtime_checkable
class Codec(Protocol):
    """A code for the flattened elements of `ctx.message`, whose segments say where tensors and their rows begin."""

    @property
    def equal_sizes(self) -> bool:
        """Whether the number of bytes depends on the message and the step alone, never on the values."""
        ...

    def encode(self, values: Tensor, ctx: Context) -> Tensor:
        """`values` [numel], float32, which stay as they are, as bytes [any length]."""
        ...

    def add_decoded(self, data: Tensor, total: Tensor, ctx: Context) -> None:
        """Add what `data` stands for to `total` [numel], in place."""
        ...


class Gathered(Codec, Protocol):
    """A compressor without memory that is its code: every rank's goes to every rank."""

    @property
    def how(self) -> How:
        """Codes cannot be summed, so every rank has every rank's."""
        return How.CONCAT

    def init(self, name: str, parameter: Tensor) -> State:
        """No state."""
        return {}

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Encode, gather, and add what every rank's code decodes to."""
        return gathered(self, grad, ctx)


def gathered(codec: Codec, grad: Tensor, ctx: Context) -> Reduction:
    """Every rank's code to every rank, summed in order of rank: the same on all of them, bit for bit."""
    data = codec.encode(grad, ctx)
    answer = yield Aggregate((data,), How.CONCAT, "gradient", equal_sizes=codec.equal_sizes)
    contributed = decoded(codec, data, grad.numel(), ctx) if ctx.wants_contribution else None
    total = grad.zero_()
    for (part,) in answer.parts:
        codec.add_decoded(part, total, ctx)
    return Reduced(total, contributed)


def decoded(codec: Codec, data: Tensor, numel: int, ctx: Context) -> Tensor:
    """What `data` stands for [numel]."""
    values = zeros(numel, data.device)
    codec.add_decoded(data, values, ctx)
    return values


def joined(*parts: Tensor) -> Tensor:
    """Tensors of any types, one behind the other, as bytes; widest types first, so that `split` may look at them in
    place."""
    return as_bytes(parts)


def split(data: Tensor, *layout: tuple[torch.dtype, int]) -> Payload:
    """Undo `joined`: so many elements of each type. Raises: ValueError if `data` is of another length."""
    sizes = [dtype.itemsize * count for dtype, count in layout]
    if sum(sizes) != data.numel():
        raise ValueError(f"{data.numel()} bytes arrived where {sum(sizes)} were due ({layout})")
    pieces = zip(data.split(sizes), layout, strict=True)
    return tuple(
        (piece if not piece.storage_offset() % dtype.itemsize else piece.clone()).view(dtype)
        for piece, (dtype, _) in pieces
    )


def scattered(aggregate: Aggregate, rank: int, world: int, num_workers: int) -> ExchangeRun:
    """SCATTER: each of the first `num_workers` ranks sends every server its part; sizes first, 8 bytes a server to
    every rank, where they may differ."""
    servers = servers_of(world, num_workers)
    own, nothing = aggregate.payload, aggregate.payload[0][:0]
    table: Sequence[Tensor] = [
        torch.tensor([part.numel() for part in own], dtype=torch.int64, device=own[0].device)
    ] * world
    if not aggregate.equal_sizes:
        table = yield AllGather(table[rank])
    serves, works = rank in servers, rank < num_workers
    arrived = yield AllToAll(
        tuple(own[to - servers.start] if works and to in servers and to != rank else nothing for to in range(world)),
        tuple(
            int(table[source][rank - servers.start]) if serves and source < num_workers and source != rank else 0
            for source in range(world)
        ),
    )
    if not serves:
        return Aggregated(())
    parts = (own[rank - servers.start] if worker == rank else arrived[worker] for worker in range(num_workers))
    return Aggregated(tuple((part,) for part in parts))


def returned(aggregate: Aggregate, rank: int, world: int, num_workers: int) -> ExchangeRun:
    """CONCAT of what servers have: to the workers alone, after a size of 8 bytes from every rank to every rank."""
    servers, data = servers_of(world, num_workers), as_bytes(aggregate.payload)
    sizes = yield AllGather(torch.tensor([data.numel()], dtype=torch.int64, device=data.device))
    works, nothing = rank < num_workers, data[:0]
    arrived = yield AllToAll(
        tuple(data if rank in servers and to < num_workers and to != rank else nothing for to in range(world)),
        tuple(int(sizes[s]) if works and s in servers and s != rank else 0 for s in range(world)),
    )
    return Aggregated(tuple((data if source == rank else part,) for source, part in enumerate(arrived)))
