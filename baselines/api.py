"""What a plug-in is: the values it sees, the protocols it may follow.

Plug-ins describe, only the engine acts: nothing here or in a plug-in talks to a network, reads a
clock or starts a thread. The same objects therefore run in one process (lockstep), on process
groups and on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor


class Slot(StrEnum):
    """What a plug-in decides; a strategy holds one of each."""

    PACKING = "packing"
    ORDERING = "ordering"
    COMPRESSION = "compression"
    EXCHANGE = "exchange"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A plug-in's entry in the catalogue. `name` is its name in strategy texts; `wraps` marks a
    plug-in that goes around another one of the same slot."""

    name: str
    slot: Slot
    summary: str
    paper: str
    wraps: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """The elements `start:stop` of one flattened parameter of `shape`.

    `index` is the parameter's place in the order in which backward makes gradients ready
    (0 is ready first), equal on every rank.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    index: int
    itemsize: int = 4

    @property
    def numel(self) -> int:
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


Group = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Segments that travel together. `index` counts messages of a step in the agreed order."""

    index: int
    segments: Group

    @property
    def numel(self) -> int:
        return sum(segment.numel for segment in self.segments)

    @property
    def nbytes(self) -> int:
        return sum(segment.nbytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Packed:
    """What a packing decided: `groups` become messages now; the rest of what was ready stays,
    and is looked at again after `look_again_s` seconds (None: when more is ready)."""

    groups: tuple[Group, ...]
    look_again_s: float | None = None


@runtime_checkable
class Packing(Protocol):
    """Which ready gradients travel as one message. Pure.

    A `rank_invariant` packing depends on the set of parameters alone: the engine asks it once,
    with every parameter, and no rank needs to talk. Any other packing is asked by the
    coordinator about what is ready on *all* ranks, and again after the `look_again_s` it answered.
    """

    card: ClassVar[Card]
    rank_invariant: ClassVar[bool]
    slices: ClassVar[bool]

    def pack(self, ready: Sequence[Segment], now_s: float) -> Packed:
        """Decide on `ready`, whole parameters in the order in which they became ready.

        Every element of a segment goes into at most one group; what is left out stays ready.
        """
        ...


@runtime_checkable
class Ordering(Protocol):
    """Which pending message goes next. Pure. A `rank_invariant` ordering keeps the plan's order.

    At most `depth` messages are in flight; the engine gives each its own lane.
    """

    card: ClassVar[Card]
    rank_invariant: ClassVar[bool]

    @property
    def depth(self) -> int: ...

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        """One of `pending`, or None to wait until a message in flight completes."""
        ...


class How(StrEnum):
    """How ranks combine payloads: element-wise sum of one tensor, or every rank's own payload."""

    SUM = "sum"
    CONCAT = "concat"


Payload = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A compressor's request. SUM wants one floating-point tensor, equal in size on all ranks, and
    may overwrite it. CONCAT takes any tensors; with `equal_sizes` the compressor promises that
    every rank's payload has this size, and no size header travels."""

    payload: Payload
    how: How
    tag: str
    equal_sizes: bool = False


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The answer: for SUM one payload, the sum; for CONCAT the payloads of ranks 0 … P−1."""

    parts: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """`value` [numel]: what every rank takes for the gradient of the message. `contributed`
    [numel]: this rank's part as it really entered the sum; given when the context asks for it."""

    value: Tensor
    contributed: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a compressor may know. `step` counts from 0; `generator` is this rank's own."""

    rank: int
    world: int
    step: int
    message: Message
    generator: torch.Generator
    wants_contribution: bool = False


class Scope(StrEnum):
    """What a compressor must see whole: nothing, a tensor, a message or the model."""

    ELEMENT = "element"
    TENSOR = "tensor"
    MESSAGE = "message"
    MODEL = "model"


State = dict[str, Tensor]
Reduction = Generator[Aggregate, Aggregated, Reduced]


@runtime_checkable
class Compressor(Protocol):
    """How a message is written. State is kept by parameter name, never by message."""

    card: ClassVar[Card]
    lossy: ClassVar[bool]

    @property
    def scope(self) -> Scope: ...

    @property
    def how(self) -> How:
        """SUM if every aggregate it asks for is a sum, else CONCAT."""
        ...

    def init(self, name: str, parameter: Tensor) -> State:
        """State of one parameter; tensors only, so that it can be checkpointed."""
        ...

    def reduce(self, grad: Tensor, states: Mapping[str, State], ctx: Context) -> Reduction:
        """Combine `grad` [numel of the message, divided by the number of ranks] over all ranks.

        A generator: yields what is to be aggregated, is sent the result, returns the mean. It
        may overwrite `grad`.
        """
        ...

    def wire_bytes(self, numel: int) -> float:
        """Bytes of one rank's payload for `numel` float32 elements, for prediction."""
        ...


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Sum `tensor` over all ranks, in place (the library's ring). Answer: (tensor,)."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class AllGather:
    """Collect `tensor`, of equal size and type on all ranks. Answer: tensors of ranks 0 … P−1."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Shift:
    """Send `tensor` to the next rank and receive `into` from the previous one. Answer: (into,)."""

    tensor: Tensor
    into: Tensor


@dataclass(frozen=True, slots=True)
class Gather:
    """Collect `tensor`, of equal size on all ranks, on rank 0. Answer: all tensors there, () elsewhere."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Overwrite `tensor` with rank 0's. Answer: (tensor,)."""

    tensor: Tensor


Primitive = AllReduce | AllGather | Shift | Gather | Broadcast
ExchangeRun = Generator[Primitive, Payload, Aggregated]


@runtime_checkable
class Exchange(Protocol):
    """How ranks combine an aggregate: a generator of primitives, sent each primitive's answer."""

    card: ClassVar[Card]
    sums_only: ClassVar[bool]

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun: ...


@runtime_checkable
class OptimizerSpec(Protocol):
    """What a step does. `element_wise` optimizers may step any part of the model on its own."""

    card: ClassVar[Card]
    element_wise: ClassVar[bool]

    def build(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer: ...


class UpdatePoint(StrEnum):
    """When a reduced gradient is applied: once all messages are complete, before the job's next
    forward (AFTER_ALL), or parameter by parameter, just before the next forward needs it
    (AT_PRE_HOOK). Under crossover AFTER_ALL means at the start of the job's next turn."""

    AFTER_ALL = "after-all"
    AT_PRE_HOOK = "at-pre-hook"


def as_bytes(payload: Payload) -> Tensor:
    """The payload as one uint8 tensor; nothing is copied where it is a single tensor."""
    flat = [part.contiguous().view(-1).view(torch.uint8) for part in payload]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


def from_bytes(data: Tensor, like: Payload) -> Payload:
    """Undo `as_bytes` for tensors of the types in `like`; where sizes differ over ranks only the
    last tensor's length may vary."""
    parts, offset = [], 0
    for position, tensor in enumerate(like):
        last = position == len(like) - 1
        end = data.numel() if last else offset + tensor.numel() * tensor.element_size()
        parts.append(data[offset:end].clone().view(tensor.dtype))
        offset = end
    return tuple(parts)
