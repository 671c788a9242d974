"""What a message asks of the link, learnt by running the plug-ins' own generators on a few elements.

The compressor says what it wants aggregated and estimates its bytes, the exchange with which primitives. An exchange's
start-up does not depend on the size and its bytes are proportional to it, so two small sizes tell all others; what
single ranks do may differ, so some are asked and the slowest counts, round by round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

import torch

from baselines.api import (
    Aggregate,
    Aggregated,
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Context,
    Gather,
    How,
    Message,
    NeedsWorld,
    Payload,
    Primitive,
    Segment,
    Serve,
    SizedByShape,
    Transfer,
    layers_of,
    servers_of,
)
from baselines.strategy import Strategy
from harness.engine.traffic import Planned, sent_by, tensor_bytes
from harness.engine.transport import may_queue
from harness.predict.costs import LinkCosts, PredictError

PROBE_ELEMENTS = 4  # a rank, so that nothing is padded
PROBE_NUMEL = 256  # of a message, to see what a compressor asks for
PROBE_STEP = 1_000_000  # behind any warm-up
PROBE_WORLD = 2  # a compressor asks for the same whatever the number of ranks, but for what a server sends back


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand(Planned):
    """Of one message, beside the bytes that a rank sends: the number of its primitives that have a gap before them, the
    seconds of these gaps, start-up and transfer in seconds alone on the link, the seconds that the engine needs for it,
    and those of compression before and after its way, if they are charged to the device. `queues`: it goes behind
    others on the link's one flow, and its gaps pass while they are carried."""

    num_gaps: int = 0
    gap_s: float = 0.0
    alpha_s: float = 0.0
    bytes_s: float = 0.0
    engine_s: float = 0.0
    before_s: float = 0.0
    after_s: float = 0.0
    queues: bool = False

    def __add__(self, other: Demand) -> Demand:
        return Demand(
            num_gaps=self.num_gaps + other.num_gaps,
            alpha_s=self.alpha_s + other.alpha_s,
            bytes_s=self.bytes_s + other.bytes_s,
            sent_bytes=self.sent_bytes + other.sent_bytes,
            framing_bytes=self.framing_bytes + other.framing_bytes,
            engine_s=self.engine_s + other.engine_s,
            before_s=self.before_s + other.before_s,
            after_s=self.after_s + other.after_s,
        )

    @property
    def alone_s(self) -> float:
        """From the message's making to its landing with nothing beside."""
        return self.gap_s + self.alpha_s + self.bytes_s + self.engine_s + self.before_s + self.after_s


@dataclass(frozen=True, slots=True)
class _Ask:
    """An aggregate's kind, and its share of the message's bytes."""

    how: How
    equal_sizes: bool
    share: float


def queues_up(strategy: Strategy, costs: LinkCosts) -> bool:
    """Whether messages of `strategy` queue up in the link."""
    return costs.queues and may_queue(strategy)


@dataclass(slots=True)
class Demands:
    """The demand of every message of `strategy` under `costs`. Raises: PredictError."""

    strategy: Strategy
    costs: LinkCosts
    _asks: tuple[_Ask, ...] = field(init=False)
    _rates: dict[tuple[How, bool], tuple[Demand, Demand]] = field(default_factory=dict)
    _by_shape: SizedByShape | None = field(init=False)
    _by_size: dict[tuple[int, int], Demand] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._asks = tuple(_asks_of(self.strategy, self.costs.world))
        innermost = layers_of(self.strategy.compression)[-1]  # wrappers add no bytes but those that servers send back
        self._by_shape = innermost if isinstance(innermost, SizedByShape) else None

    @property
    def queue_up(self) -> bool:
        """Whether messages queue up in the link."""
        return queues_up(self.strategy, self.costs)

    def of(self, message: Message) -> Demand:
        """What `message` asks for."""
        if self._by_shape is not None:
            return self._priced(message)
        # Training asks for the same sizes step after step.
        size = (message.numel, message.nbytes)
        if (known := self._by_size.get(size)) is None:
            known = self._by_size[size] = self._priced(message)
        return known

    def _priced(self, message: Message) -> Demand:
        compression = self.strategy.compression
        engine, num_bytes = self.costs.engine, message.nbytes
        own_s = engine.codec_s_per_byte.get(compression.card.name, 0.0) * num_bytes
        engine_s = engine.on_message_s(num_bytes, queues=self.queue_up)
        total = Demand(engine_s=engine_s + own_s)
        if any(engine.device_codec_s_per_byte):  # its own work is done meanwhile
            before_s, after_s = (max(own_s / 2, each * num_bytes) for each in engine.device_codec_s_per_byte)
            total = Demand(engine_s=engine_s, before_s=before_s, after_s=after_s)
        asks = chain(self._asks, repeat(self._asks[-1]))  # a probe may be too small for all that a message asks for
        for sent_bytes, ask in zip(self._payload_bytes(message), asks, strict=False):
            fixed, per_byte = self._exchange(ask.how, ask.equal_sizes)
            total += fixed
            total += Demand(bytes_s=sent_bytes * per_byte.bytes_s, sent_bytes=sent_bytes * per_byte.sent_bytes)
        num_gaps, link_s = total.num_gaps, total.alpha_s + total.bytes_s
        gap_s = num_gaps * self.costs.gap_before_s(link_s / num_gaps) if num_gaps else 0.0
        return replace(
            total, gap_s=gap_s, queues=self.queue_up or (self.costs.queues and self.strategy.sums_one_by_one)
        )

    def _payload_bytes(self, message: Message) -> tuple[float, ...]:
        """Bytes of each aggregate of `message`; a compressor that knows shapes may ask for other than a probe."""
        if self._by_shape is not None:
            return self._by_shape.aggregate_bytes(message, self.costs.world)
        world = self.costs.world
        if any(ask.how is How.SCATTER for ask in self._asks):
            world = num_servers(self.strategy, world)
        total = self.strategy.compression.wire_bytes(message.numel, world)
        return tuple(ask.share * total for ask in self._asks)

    def _exchange(self, how: How, equal_sizes: bool) -> tuple[Demand, Demand]:
        """What every aggregate of this kind asks for, and what each byte of it adds."""
        key = (how, equal_sizes)
        if key not in self._rates:
            small = PROBE_ELEMENTS * self.costs.world
            once, twice = (self._run(how, equal_sizes, numel) for numel in (small, 2 * small))
            # Bytes of the difference: float32.
            step = 4 * small
            per_byte = Demand(
                bytes_s=(twice.bytes_s - once.bytes_s) / step, sent_bytes=(twice.sent_bytes - once.sent_bytes) / step
            )
            fixed = Demand(
                num_gaps=once.num_gaps,
                alpha_s=once.alpha_s,
                bytes_s=once.bytes_s - step * per_byte.bytes_s,
                sent_bytes=once.sent_bytes - step * per_byte.sent_bytes,
                framing_bytes=once.framing_bytes,
            )
            self._rates[key] = (fixed, per_byte)
        return self._rates[key]

    def _run(self, how: How, equal_sizes: bool, numel: int) -> Demand:
        """One aggregate of `numel` float32 elements; the slowest of some ranks in each round, bytes of rank 0."""
        world = self.costs.world
        rounds: list[Demand] = []
        for rank in unlike_ranks(world):
            payload = payload_of(self.strategy, how, numel, world)
            aggregate = Aggregate(payload, how, "gradient", equal_sizes, merge=lambda own, _: own)
            for place, primitive in enumerate(primitives_of(self.strategy, aggregate, rank, world)):
                own = self._price(primitive, rank)
                if place == len(rounds):
                    rounds.append(own)
                # A round ends with its slowest rank; bytes stay rank 0's, as records count them.
                elif own.alone_s > rounds[place].alone_s:
                    first = rounds[place]
                    rounds[place] = replace(own, sent_bytes=first.sent_bytes, framing_bytes=first.framing_bytes)
        return sum(rounds, Demand())

    def _price(self, primitive: Primitive, rank: int) -> Demand:
        world = self.costs.world
        sent, framing, _ = sent_by(primitive, world) if rank == 0 else (0.0, 0.0, 0)
        if isinstance(primitive, Serve):
            elements_s = self.costs.engine.update_s_per_byte * 4 * primitive.grad.numel()
            return Demand(bytes_s=elements_s, sent_bytes=sent)
        num_bytes = tensor_bytes(primitive)
        if num_bytes == 0 and isinstance(primitive, Transfer | AllToAll):
            return Demand()
        cost = self.costs.of(type(primitive).__name__)
        return Demand(
            num_gaps=int(not self.queue_up),
            alpha_s=cost.alpha_s,
            bytes_s=cost.beta_s_per_byte * num_bytes,
            sent_bytes=sent,
            framing_bytes=framing,
        )


def unlike_ranks(world: int) -> list[int]:
    """The ends, a neighbour and the middle: exchanges that treat ranks differently (trees, servers) differ there."""
    return sorted({0, 1 % world, world // 2, world - 1})


def payload_of(strategy: Strategy, how: How, numel: int, world: int) -> Payload:
    """Of `numel` float32 elements, all in one tensor, or a part for each server."""
    if how is not How.SCATTER:
        return (torch.zeros(numel),)
    servers = servers_of(world, strategy.num_workers(world))
    return torch.zeros(4 * numel, dtype=torch.uint8).tensor_split(len(servers))


def primitives_of(strategy: Strategy, aggregate: Aggregate, rank: int, world: int) -> Iterator[Primitive]:
    """The primitives that rank `rank` of equal ranks asks for, one after the other."""
    run = strategy.exchange.run(aggregate, rank, world)
    answer: Payload | None = None
    while True:
        try:
            primitive = next(run) if answer is None else run.send(answer)
        except StopIteration:
            return
        yield primitive
        answer = _answer(primitive, rank, world)


def _answer(primitive: Primitive, rank: int, world: int) -> Payload:
    """What equal ranks would give, where only its size matters."""
    match primitive:
        case AllReduce(tensor) | Broadcast(tensor):
            return (tensor,)
        case AllGather(tensor):
            return (tensor,) * world
        case Gather(tensor):
            return (tensor,) * world if rank == 0 else ()
        case Transfer(into=into):
            return () if into is None else (into,)
        case AllToAll(parts, sizes):
            return tuple(torch.zeros(size, dtype=parts[0].dtype) for size in sizes)
        case Serve(grad):
            return (grad,)


def _asks_of(strategy: Strategy, world: int) -> Iterator[_Ask]:
    """What the compressor asks for in a message, by the bytes that it really yields for a small one."""
    payloads = list(_probed(strategy))
    # Behind a scatter come codes of a server's part, which are the smaller the more servers there are.
    scattered = next((place for place, (how, *_) in enumerate(payloads) if how is How.SCATTER), len(payloads))
    part = PROBE_WORLD / num_servers(strategy, world)
    sizes = [num_bytes * (part if place > scattered else 1.0) for place, (*_, num_bytes) in enumerate(payloads)]
    for (how, equal_sizes, _), num_bytes in zip(payloads, sizes, strict=True):
        yield _Ask(how, equal_sizes, num_bytes / sum(sizes))


def num_servers(strategy: Strategy, world: int) -> int:
    """How many ranks combine what is scattered."""
    return len(servers_of(world, strategy.num_workers(world)))


def _probed(strategy: Strategy) -> Iterator[tuple[How, bool, int]]:
    compression = strategy.compression
    shape = (PROBE_NUMEL // 16, 16)
    message = Message(0, (Segment("probe", shape, 0, PROBE_NUMEL, 0),))
    states = {"probe": compression.init("probe", torch.zeros(shape))}
    context = Context(0, PROBE_WORLD, PROBE_STEP, message, torch.Generator().manual_seed(0))
    run = compression.reduce(torch.linspace(-1, 1, PROBE_NUMEL), states, context)
    try:
        aggregate = next(run)
        while True:
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in aggregate.payload)
            yield aggregate.how, aggregate.equal_sizes, num_bytes
            aggregate = run.send(Aggregated(_equal_answers(aggregate)))
    except StopIteration:
        return


def _equal_answers(aggregate: Aggregate) -> tuple[Payload, ...]:
    """What rank 0 of equal ranks is told."""
    if aggregate.how is How.SCATTER:
        return ((aggregate.payload[0],),) * PROBE_WORLD
    return (aggregate.payload,) * (PROBE_WORLD if aggregate.how is How.CONCAT else 1)


def check_world(strategy: Strategy, world: int) -> None:
    """Raises: PredictError where the exchange does not go with so many ranks."""
    if isinstance(strategy.exchange, NeedsWorld) and (reason := strategy.exchange.why_unfit(world)):
        raise PredictError(f"{strategy.text}: {reason}")
