"""Parameter server, synchronous: workers push, servers sum, workers pull, message by message.

Paper: Li et al., Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014. A server
adds the W workers' parts in order of rank and sends the total to all of them.

`placement` says which elements are a server's. "even": each message of n elements is cut over the S
servers, ⌊n/S⌋ elements each, the first n mod S one more. "whole": a message goes to one server as it
is, slice i of the model to server i mod S, a message that is not cut by its first parameter's place
in ready order. "auto" (default): slices whole, as P3's authors do it (Jayarajan et al., MLSys 2019,
in MXNet's key-value store: round-robin over servers), anything else even. Even costs S start-up
times per message, whole leaves servers idle while there are fewer messages than servers.

`servers=0`: every rank is also a server (S = W = P) and keeps its own part: (P−1)/P·n elements
pushed and as many served a rank, the bytes of a ring in 2 rounds. `servers=S`: the last S ranks only
serve; a worker pushes n, a server sends W·n/S.

`update="worker"`: the total is the mean gradient, and every worker steps. `update="server"`: a
server steps the optimizer once a version on its part, keeps its state, and replies with the new
parameters. That needs an element-wise optimizer, an exact reply, and the same messages every step.

Differs from the paper: one global version a step (bulk synchronous), ranges by message instead of
consistent hashing of keys, no replication. It sums, or takes codes in
and sends codes back (`double-squeeze`). Not verified against the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Aggregate, Aggregated, AllToAll, Card, ExchangeRun, How, Message, Serve, Slot
from baselines.codec import returned, scattered


@dataclass(frozen=True, slots=True)
class ParameterServer:
    card: ClassVar[Card] = Card(
        name="parameter-server",
        slot=Slot.EXCHANGE,
        summary="workers push to sharded servers and pull back; servers colocated or dedicated",
        paper="Li et al., OSDI 2014",
    )
    takes: ClassVar[frozenset[How]] = frozenset({How.SUM, How.SCATTER})
    servers: int = 0
    update: str = "worker"
    placement: str = "auto"

    def __post_init__(self) -> None:
        if self.servers < 0:
            raise ValueError(f"servers is {self.servers}; use 0 for a server on every rank, or a number of ranks")
        if self.update not in ("worker", "server"):
            raise ValueError(f"update is {self.update!r}; use 'worker' or 'server'")
        if self.placement not in ("auto", "even", "whole"):
            raise ValueError(f"placement is {self.placement!r}; use 'auto', 'even' or 'whole'")

    @property
    def updates_on_servers(self) -> bool:
        """Whether a server replies with parameters instead of gradients."""
        return self.update == "server"

    def num_workers(self, world: int) -> int:
        """Ranks that train: all but the last `servers`."""
        return world - self.servers

    def why_unfit(self, world: int) -> str | None:
        """The reason where no worker would be left, else None."""
        if self.num_workers(world) < 1:
            return f"servers={self.servers} of {world} ranks leaves no worker; use at most {world - 1}"
        return None

    def shard_sizes(self, numel: int, world: int, message: Message | None = None) -> list[int]:
        """How many of a message's `numel` elements each rank serves; evenly for no message in particular."""
        first = 0 if self.servers == 0 else world - self.servers
        if message is not None and self._goes_whole(message):
            server = first + place_of(message) % (world - first)
            return [numel if rank == server else 0 for rank in range(world)]
        each, more = divmod(numel, world - first)
        return [0] * first + [each + (position < more) for position in range(world - first)]

    def _goes_whole(self, message: Message) -> bool:
        return self.placement == "whole" or (self.placement == "auto" and message.segments[0].slice is not None)

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        """Push by one all-to-all, sum (and step, by `Serve`), pull by another. Raises: ValueError for MERGE, or
        without a worker."""
        if reason := self.why_unfit(world):
            raise ValueError(f"parameter-server: {reason}")
        if aggregate.how is How.SCATTER:
            return (yield from scattered(aggregate, rank, world, self.num_workers(world)))
        if aggregate.how is How.CONCAT:
            return (yield from returned(aggregate, rank, world, self.num_workers(world)))
        if aggregate.how is not How.SUM:
            raise ValueError("parameter-server does not merge; use the exchange 'tree'")
        (tensor,) = aggregate.payload
        flat, num_workers = tensor.view(-1), self.num_workers(world)
        sizes = self.shard_sizes(flat.numel(), world, aggregate.message)
        shards, nothing = flat.split(sizes), flat[:0]
        works = [other < num_workers for other in range(world)]

        pushed = yield AllToAll(
            tuple(shard if works[rank] and to != rank else nothing for to, shard in enumerate(shards)),
            tuple(sizes[rank] if works[source] and source != rank else 0 for source in range(world)),
        )
        first, *others = (shards[rank] if worker == rank else pushed[worker] for worker in range(num_workers))
        total = first.clone()
        for part in others:
            total.add_(part)
        if self.updates_on_servers:
            (total,) = yield Serve(total, start=sum(sizes[:rank]))
        pulled = yield AllToAll(
            tuple(total if works[to] and to != rank else nothing for to in range(world)),
            tuple(size if works[rank] and server != rank else 0 for server, size in enumerate(sizes)),
        )
        for server, shard in enumerate(shards if works[rank] else ()):
            shard.copy_(total if server == rank else pulled[server])
        return Aggregated(((tensor,),))


def place_of(message: Message) -> int:
    """Which of the model's messages it is, the same in every step: its slice, or its first parameter."""
    first = message.segments[0]
    return first.index if first.slice is None else first.slice
