"""What a plug-in is: the values it sees, the protocols it may follow.

Plug-ins describe, only the engine acts: nothing here or in a plug-in talks to a network, reads a
clock or starts a thread. The same objects therefore run in one process (lockstep), on process
groups and on a virtual clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self, TypeVar, runtime_checkable

import torch
from torch import Tensor

from baselines.memory import blank

P = TypeVar("P")


class Slot(StrEnum):
    """What a plug-in decides; a strategy holds one of each."""

    PACKING = "packing"
    ORDERING = "ordering"
    COMPRESSION = "compression"
    EXCHANGE = "exchange"
    OPTIMIZER = "optimizer"
    TUNING = "tuning"
    CONSISTENCY = "consistency"


REALS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
NUMBERS = REALS | {torch.complex64, torch.complex128}
IN_FLOAT32 = REALS - {torch.float64}  # what loses nothing on its way through a compressor, which sees float32
# Packings, orderings, tuners and rules of consistency look at sizes and times, not at elements.
_TAKEN_BY = {Slot.COMPRESSION: IN_FLOAT32, Slot.EXCHANGE: REALS, Slot.OPTIMIZER: REALS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A plug-in's entry in the catalogue. `name` is its name in strategy texts; `wraps` marks a
    plug-in that goes around another one of the same slot. `dtypes` are the element types of gradients that it takes;
    by default those that its slot says: 16 bits and float32 for compressors, real numbers for exchanges and optimizers,
    complex ones too elsewhere. A model with other parameters is refused before the first step."""

    name: str
    slot: Slot
    summary: str
    paper: str
    wraps: bool = False
    dtypes: frozenset[torch.dtype] = frozenset()

    def __post_init__(self) -> None:
        if not self.dtypes:
            object.__setattr__(self, "dtypes", _TAKEN_BY.get(self.slot, NUMBERS))


UNIT = "unit"  # the key under which a field's metadata say that it is a size


def size(default: Any, unit: str) -> Any:
    """A parameter that is a size in `unit`: "bytes", "elements" or "MB".

    Where tensors are S times smaller than what they stand for, so is a size; names show what it stands for. The unit
    "scale" marks the parameter that is told S itself.
    """
    return field(default=default, metadata={UNIT: unit})


MOST_IN_FLIGHT = 64  # each has a process group of its own


def check_depth(depth: int) -> None:
    """Refuse a number of messages in flight that no engine can hold. Raises: ValueError unless 1 ≤ depth ≤ 64."""
    if not 1 <= depth <= MOST_IN_FLIGHT:
        raise ValueError(f"depth is {depth}; between 1 and {MOST_IN_FLIGHT} messages may be in flight")


def check_not_negative(**settings: float) -> None:
    """Refuse settings of an optimizer below 0. Raises: ValueError naming the first one."""
    for name, value in settings.items():
        if value < 0.0:
            raise ValueError(f"{name} is {value:g}; use 0 or more")


@dataclass(frozen=True, slots=True)
class Segment:
    """The elements `start:stop` of one flattened parameter of `shape`.

    `dtype` is the gradient's number format; formats never mix in a message, though two have elements of one size.
    `slice` numbers the parts of a model that a packing cuts, over all parameters; None for what was not cut.
    `index` is the parameter's place in the order in which backward makes gradients ready (0 is ready first), equal
    on every rank.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    stop: int
    index: int
    dtype: torch.dtype = torch.float32
    slice: int | None = None

    @property
    def numel(self) -> int:
        """How many elements."""
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of the uncompressed gradient."""
        return self.numel * self.dtype.itemsize


Group = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Message:
    """Segments that travel together, with `numel` elements in all, one segment behind the other, and `nbytes` bytes
    uncompressed. `index` counts messages of a step in the agreed order."""

    index: int
    segments: Group
    # Summed once: they are asked for several times per message, and a plan's messages are the same in every step.
    numel: int = field(init=False, repr=False, compare=False)
    nbytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numel = nbytes = 0
        for segment in self.segments:
            own = segment.stop - segment.start
            numel += own
            nbytes += own * segment.dtype.itemsize
        object.__setattr__(self, "numel", numel)
        object.__setattr__(self, "nbytes", nbytes)

    @property
    def priority(self) -> int:
        """How soon the next forward needs it, larger is sooner: what becomes ready last in backward is needed first."""
        return max(segment.index for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a policy that plans ahead is bound to, equal on every rank.

    A message of n bytes takes α + β·n seconds over all ranks. `backward_s[i]` is from the readiness of gradient i−1 (or
    the start of backward) to that of gradient i, in the order of `Segment.index`; `forward_s[i]` the forward of the
    layer that needs parameter i first, in the same order, 0 for all but one parameter of a layer. `nbytes[i]` is the
    size of parameter i, and `needs[i]` all parameters that the layer of parameter i needs, directly or through layers
    before it; without them layers are a chain.
    """

    alpha_s: float
    beta_s_per_byte: float
    backward_s: tuple[float, ...]
    forward_s: tuple[float, ...]
    nbytes: tuple[int, ...] = ()
    needs: tuple[tuple[int, ...], ...] = ()

    def message_s(self, nbytes: float) -> float:
        """t_c, the seconds that a message of `nbytes` bytes takes over all ranks: α + β·n."""
        return self.alpha_s + self.beta_s_per_byte * nbytes


@runtime_checkable
class NeedsCosts(Protocol):
    """A packing or ordering that wants costs. Before it is bound it does the null thing of its slot; the engine binds
    it once costs are measured and agreed, and again when they have drifted. Binding is pure."""

    def bind(self, costs: Costs) -> Self:
        """The same plug-in, planning with `costs`; `costs.backward_s` has one entry per parameter, in ready order."""
        ...


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting that a tuner may search, in `low … high`, on a logarithmic scale unless said."""

    low: float
    high: float
    log: bool = True


@dataclass(frozen=True, slots=True)
class Tried:
    """Knob values and the step time in seconds that they gave."""

    values: Mapping[str, float]
    step_s: float


@runtime_checkable
class HasKnobs(Protocol):
    """A packing or ordering with settings to search: `knobs` names fields of the dataclass."""

    knobs: ClassVar[Mapping[str, Knob]]


@runtime_checkable
class Tuner(Protocol):
    """Searches the knobs of a strategy while it trains. Pure; asked on the coordinator alone."""

    card: ClassVar[Card]

    @property
    def num_trials(self) -> int:
        """How many settings are tried; 0 leaves the knobs alone."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps a trial."""
        ...

    def propose(self, knobs: Mapping[str, Knob], tried: Sequence[Tried]) -> Mapping[str, float]:
        """What to try next; after `num_trials`, what to keep."""
        ...


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
    with every parameter, and no rank needs to talk. Any other packing is asked about what is ready on *all* ranks, and
    again after the `look_again_s` it answered: by the coordinator, or by every rank for itself, so the answer depends
    on nothing else.
    """

    card: ClassVar[Card]
    rank_invariant: ClassVar[bool]
    slices: ClassVar[bool]

    def pack(self, ready: Sequence[Segment]) -> Packed:
        """Decide on `ready`, whole parameters in the order in which they became ready.

        Every element of a segment goes into at most one group; what is left out stays ready.
        """
        ...


@runtime_checkable
class Ordering(Protocol):
    """Which pending message goes next. Pure. A `rank_invariant` ordering keeps the plan's order.

    At most `depth` messages are in flight; the engine gives each its own lane. Any other ordering is asked by the
    coordinator for the order, as if nothing were in flight, and by each rank whether the next message of that order may
    go now.
    """

    card: ClassVar[Card]
    rank_invariant: ClassVar[bool]

    @property
    def depth(self) -> int:
        """How many messages may be in flight at once, 1 or more."""
        ...

    def pick(self, pending: Sequence[Message], in_flight: Sequence[Message], now_s: float) -> Message | None:
        """One of `pending`, or None to wait until a message in flight completes; with nothing in flight never None."""
        ...


@runtime_checkable
class OneByOne(Protocol):
    """An ordering that may have messages travel one behind the other: the first of those in flight has the link, and
    the next are handed over already. Messages of any other ordering share the link."""

    @property
    def one_by_one(self) -> bool:
        """Whether they do."""
        ...


@runtime_checkable
class Keyed(Protocol):
    """An ordering that picks the pending message of the smallest key, which never changes: a heap then does."""

    def key(self, message: Message) -> tuple[int, ...]:
        """What messages are compared by; of equal length for all messages of a step."""
        ...


@runtime_checkable
class HasCredit(Protocol):
    """An ordering that says itself how far ahead is decided: while messages that are decided and not complete have
    fewer bytes than the credit. For any other one the engine decides as far ahead as a control round takes."""

    @property
    def credit_bytes(self) -> int:
        """Bytes of uncompressed gradients, above 0."""
        ...


class How(StrEnum):
    """How ranks combine payloads: element-wise sum of one tensor; every rank's own payload; to each server its own part
    of every worker's payload; or two at a time by the compressor's own rule, up a tree."""

    SUM = "sum"
    CONCAT = "concat"
    SCATTER = "scatter"
    MERGE = "merge"


Payload = tuple[Tensor, ...]
Merge = Callable[[Payload, Payload], Payload]


@dataclass(slots=True)
class Aggregate:
    """A compressor's request.

    SUM wants one floating-point tensor, equal in size on all ranks, and may overwrite it. CONCAT takes any tensors.
    SCATTER takes one uint8 tensor per server, in order of servers. MERGE takes any tensors, equal in size on all ranks,
    and `merge(own, arrived)`, which gives a payload of that size. With `equal_sizes` the compressor promises that
    every rank's payload has this size (for SCATTER: all payloads for one server), and no size header travels.
    `message` is what it is about: whoever drives the compressor fills it in, for exchanges that place messages.
    """

    payload: Payload
    how: How
    tag: str
    equal_sizes: bool = False
    merge: Merge | None = None
    message: Message | None = None


@dataclass(frozen=True, slots=True)
class Aggregated:
    """The answer: for SUM and MERGE one payload, the same on all ranks; for CONCAT the payloads of ranks 0 … P−1; for
    SCATTER on a server what each worker had for it, in order of workers, and elsewhere nothing."""

    parts: tuple[Payload, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """`value` [numel]: what every rank takes for the gradient of the message. `contributed`
    [numel]: this rank's part as it really entered the sum; given when the context asks for it."""

    value: Tensor
    contributed: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """What a compressor may know. `step` counts exchanges from 0, which are steps unless ranks take local ones;
    `generator` is this rank's own; `servers` are the ranks that combine what is scattered, all of them unless some only
    serve."""

    rank: int
    world: int
    step: int
    message: Message
    generator: torch.Generator
    wants_contribution: bool = False
    num_workers: int = 0

    @property
    def servers(self) -> range:
        """The ranks that combine what is scattered."""
        return servers_of(self.world, self.num_workers or self.world)


def servers_of(world: int, num_workers: int) -> range:
    """The ranks behind the workers, or else every rank."""
    return range(num_workers if num_workers < world else 0, world)


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
    def scope(self) -> Scope:
        """What it must see whole; packings that cut it are refused."""
        ...

    @property
    def how(self) -> How:
        """SUM if every aggregate that it asks for is a sum, else what its gradient is combined by."""
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

    def wire_bytes(self, numel: int, world: int) -> float:
        """Bytes of one rank's payloads for `numel` float32 elements, all of its aggregates together, for prediction.

        What depends on data is estimated; what was really sent is counted by the engine.
        """
        ...


def layers_of(plugin: P) -> tuple[P, ...]:
    """A compressor, or an optimizer's spec, and those inside it, outermost first."""
    inner = getattr(plugin, "inner", None)
    return (plugin, *(() if inner is None else layers_of(inner)))


@runtime_checkable
class SizedByShape(Protocol):
    """A compressor whose bytes depend on the shapes of parameters, which `wire_bytes` does not see."""

    def aggregate_bytes(self, message: Message, world: int) -> tuple[float, ...]:
        """Bytes of one rank's payload in each aggregate that it asks for with `message`, in order, for prediction."""
        ...


@runtime_checkable
class CountsBits(Protocol):
    """A compressor whose code has another size by its definition than `wire_bytes` foresees, e.g. at its entropy."""

    @property
    def code_bits(self) -> float:
        """Bits per element as the method counts them: values, positions, and scales unless it says they are apart."""
        ...


@runtime_checkable
class RampsUp(Protocol):
    """A compressor that sends more in its first `ramp_steps` exchanges, and less with every one of them."""

    @property
    def ramp_steps(self) -> int:
        """How many exchanges, 0 or more."""
        ...


@runtime_checkable
class KeepsResidual(Protocol):
    """A compressor that itself feeds back what it loses, so that no `error-feedback` goes around it."""

    keeps_residual: ClassVar[bool]


@runtime_checkable
class Votes(Protocol):
    """A compressor whose result is no sum of contributions, so that no `error-feedback` goes around it."""

    votes: ClassVar[bool]


@runtime_checkable
class StartsDense(Protocol):
    """A compressor whose first `dense_steps` exchanges are sent as they are: a wrapper that is not there any more after
    them, or a method that leaves them to its optimizer."""

    @property
    def dense_steps(self) -> int:
        """How many exchanges, 0 or more."""
        ...


@runtime_checkable
class NeedsOptimizer(Protocol):
    """A compressor that does part of an optimizer's work, and fits those optimizers alone that leave it to it."""

    def fits(self, optimizer: OptimizerSpec) -> bool:
        """Whether `optimizer`, without what goes around it, leaves to the compressor what the compressor does."""
        ...


@runtime_checkable
class AppliesMomentum(Protocol):
    """A compressor, or an optimizer's spec, that accumulates gradients over steps; at most one of the two may."""

    @property
    def applies_momentum(self) -> bool:
        """Whether it does, as it is set."""
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
class Transfer:
    """Send `send` to rank `to` and receive `into` from rank `source`; without either, sit this round out.

    Every rank asks for one in each round, and what one rank sends another one receives. Answer: (into,), or () where
    nothing is received.
    """

    send: Tensor | None = None
    to: int | None = None
    into: Tensor | None = None
    source: int | None = None

    @property
    def tensor(self) -> Tensor | None:
        """What this rank sends or else receives."""
        return self.into if self.send is None else self.send


@dataclass(frozen=True, slots=True)
class AllToAll:
    """Send `parts[r]` [any length, one type] to every rank r, and receive `sizes[r]` elements from it.

    What a rank has for itself it keeps: its own part and size are empty. Answer: what ranks 0 … P−1 sent, in order.
    """

    parts: tuple[Tensor, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Serve:
    """A server's optimizer step on the elements from `start` of the flattened message, with `grad` as their gradient.

    Nothing travels: the engine does it where it is asked. Every rank asks in the same round, those with nothing to
    serve with an empty `grad`. Answer: (the new values of these elements,).
    """

    grad: Tensor
    start: int


@dataclass(frozen=True, slots=True)
class Gather:
    """Collect `tensor`, of equal size on all ranks, on rank 0. Answer: all tensors there, () elsewhere."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Overwrite `tensor` with rank 0's. Answer: (tensor,)."""

    tensor: Tensor


Primitive = AllReduce | AllGather | Transfer | AllToAll | Gather | Broadcast | Serve
ExchangeRun = Generator[Primitive, Payload, Aggregated]


@runtime_checkable
class Exchange(Protocol):
    """How ranks combine an aggregate: a generator of primitives, sent each primitive's answer.

    `takes` says which compressors it serves. One that takes SCATTER also answers the CONCAT by which servers return
    what they have combined.
    """

    card: ClassVar[Card]
    takes: ClassVar[frozenset[How]]

    def run(self, aggregate: Aggregate, rank: int, world: int) -> ExchangeRun:
        """What rank `rank` of `world` asks for to combine `aggregate` with those of the others.

        A generator: yields primitives one by one, is sent each one's answer, returns what the compressor is told. In
        each round all ranks yield a primitive of the same kind. Payloads may be overwritten.
        """
        ...


@runtime_checkable
class Consistency(Protocol):
    """When a worker may go on, and what a server makes of updates. Pure.

    A worker's clock is the number of updates that it has pushed. All updates of one clock, one from each worker, are a
    version of the parameters.
    """

    card: ClassVar[Card]

    @property
    def staleness(self) -> int | None:
        """How many clocks a worker may be ahead of the slowest one; None without a bound."""
        ...

    @property
    def is_synchronous(self) -> bool:
        """Whether no worker ever computes on parameters that lack another worker's update."""
        ...

    def may_start(self, clocks: Sequence[int], own: int) -> bool:
        """Whether worker `own` may begin its next clock; `clocks` [workers] are those that the server has seen."""
        ...

    def must_include(self, clock: int) -> int:
        """The last clock of which a read at `clock` holds every worker's update; below 0 for none."""
        ...

    def share(self, num_arrived: int, num_workers: int) -> float:
        """The weight of each update of a version of which `num_arrived` have come; 1/P once all have."""
        ...


@runtime_checkable
class SharesMemory(Protocol):
    """A consistency method whose workers share one host's memory, and have no servers."""

    shares_memory: ClassVar[bool]


@runtime_checkable
class NeedsWorld(Protocol):
    """An exchange that does not go with any number of ranks."""

    def why_unfit(self, world: int) -> str | None:
        """The reason why `world` ranks cannot do it and the remedy, or None."""
        ...


@runtime_checkable
class HasServers(Protocol):
    """An exchange in which some ranks may only serve: the last ones, after `num_workers` that train."""

    @property
    def updates_on_servers(self) -> bool:
        """Whether servers step the optimizer (`Serve`) and what comes back are parameters, not gradients."""
        ...

    def num_workers(self, world: int) -> int:
        """How many of `world` ranks train, 1 or more; the others only serve."""
        ...


Parameters = Iterable[Tensor] | Iterable[tuple[str, Tensor]]
"""What is to be stepped, with names where there are any, as torch's own optimizers take it."""


@runtime_checkable
class OptimizerSpec(Protocol):
    """What a step does."""

    card: ClassVar[Card]

    @property
    def scope(self) -> Scope:
        """What it must see whole: any part of the model may be stepped on its own that holds whole elements or whole
        tensors, in their shapes; or the model at once."""
        ...

    def build(self, parameters: Parameters) -> torch.optim.Optimizer:
        """An optimizer of `parameters` alone, all of its state its own. Raises: ValueError if it needs names and there
        are none."""
        ...


class UpdatePoint(StrEnum):
    """When a reduced gradient is applied: once all messages are complete, before the job's next
    forward (AFTER_ALL), or parameter by parameter, just before the next forward needs it
    (AT_PRE_HOOK). Under crossover AFTER_ALL means at the start of the job's next turn."""

    AFTER_ALL = "after-all"
    AT_PRE_HOOK = "at-pre-hook"


def as_bytes(payload: Payload) -> Tensor:
    """The payload as one uint8 tensor [bytes of all its tensors]; nothing is copied where it is a single contiguous
    tensor."""
    full = (part.contiguous().view(-1) if part.numel() else torch.zeros(0, device=part.device) for part in payload)
    flat = [part.view(torch.uint8) for part in full]  # an empty tensor of numpy's has stride 0, which has no such view
    if len(flat) == 1:
        return flat[0]
    return torch.cat(flat, out=blank(sum(part.numel() for part in flat), torch.uint8, flat[0].device))


def from_bytes(data: Tensor, like: Payload) -> Payload:
    """Undo `as_bytes` for `data` [bytes, uint8]: flat copies of the types and lengths in `like`, the last as long as
    `data` has left. Raises: RuntimeError from torch if that is no whole number of elements.
    """
    parts, offset = [], 0
    for position, tensor in enumerate(like):
        last = position == len(like) - 1
        end = data.numel() if last else offset + tensor.numel() * tensor.element_size()
        parts.append(data[offset:end].clone().view(tensor.dtype))
        offset = end
    return tuple(parts)
