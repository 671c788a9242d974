"""Which message goes next: pure bookkeeping between packing, ordering and the engine.

Two ways to agree over ranks. A static plan: packing and ordering are rank-invariant, so every
rank makes the same messages and sends them in the plan's order, without talking. Negotiated:
a coordinator asks packing and ordering about what is ready on all ranks. It is rank 0, which sends its
decisions round, or each rank its own where all must decide alike (`harness.engine.negotiate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from heapq import heappop, heappush

from baselines.api import Group, HasCredit, Keyed, Message, Ordering, Packing, Segment

DEFAULT_CYCLE_S = 0.001
NUMBERS_A_SEGMENT = 3  # parameter, start, stop
MARGIN = 1.25  # more than what starts in one control round is decided ahead, since rounds differ
LARGEST_SHARE = 0.25  # of a step's bytes that are decided ahead, so that what is urgent can still overtake


class PlanError(RuntimeError):
    """A packing that loses or doubles elements: a defect of the plug-in."""


def make_plan(packing: Packing, segments: Sequence[Segment]) -> tuple[Message, ...]:
    """All messages of a step for a rank-invariant packing, each element exactly once.

    Raises: PlanError naming the parameter that is lost or sent twice.
    """
    groups = packing.pack(segments).groups
    # Checked where the plan is made: a lost element would train to wrong weights without any error.
    covered = _elements(groups)
    for segment in segments:
        if covered.get(segment.name, 0) != segment.numel:
            raise PlanError(
                f"{packing.card.name}: {covered.get(segment.name, 0)} of {segment.numel} elements of "
                f"{segment.name} are packed"
            )
    return tuple(Message(index, group) for index, group in enumerate(groups))


def _elements(groups: Sequence[Group]) -> dict[str, int]:
    """How many elements of each parameter the groups hold."""
    counts: dict[str, int] = {}
    for segment in (s for group in groups for s in group):
        counts[segment.name] = counts.get(segment.name, 0) + segment.numel
    return counts


@dataclass(frozen=True, slots=True)
class Needs:
    """How many parameters each message of a plan needs, and the messages that need each parameter."""

    num_parameters: tuple[int, ...]
    messages_of: Mapping[int, Sequence[int]]

    def one_more(self, index: int, missing: list[int]) -> list[int]:
        """Take parameter `index` off what messages still miss; those that miss nothing any more."""
        whole = []
        for message_index in self.messages_of.get(index, ()):
            missing[message_index] -= 1
            # A message that waits for several parameters goes with the last of them.
            if missing[message_index] == 0:
                whole.append(message_index)
        return whole


def needs_of(plan: Sequence[Message]) -> Needs:
    """What the messages of `plan`, numbered from 0, need."""
    num_parameters, messages_of = list[int](), dict[int, list[int]]()
    for message in plan:
        needed = {segment.index for segment in message.segments}
        num_parameters.append(len(needed))
        for index in needed:
            messages_of.setdefault(index, []).append(message.index)
    return Needs(tuple(num_parameters), messages_of)


@dataclass(slots=True)
class StaticDispatch:
    """The messages of one step, sent in the plan's order as their gradients become ready. `known` is what they need, if
    a step before found it out."""

    plan: tuple[Message, ...]
    known: InitVar[Needs | None] = None
    _needs: Needs = field(init=False)
    _missing: list[int] = field(init=False)
    _next: int = 0

    def __post_init__(self, known: Needs | None) -> None:
        self._needs = known or needs_of(self.plan)
        # Behind the last message stands one that never has what it needs, so that nobody has to look for the end.
        self._missing = [*self._needs.num_parameters, 1]

    def ready(self, index: int) -> bool:
        """The gradient of parameter `index` is ready on this rank; whether a message may go now.

        May be called from another thread than `next`: this one alone writes `_missing`, that one
        `_next`.
        """
        # Not by `one_more`: this is called per gradient from autograd's hooks, and holds backward up.
        missing = self._missing
        for message_index in self._needs.messages_of.get(index, ()):
            missing[message_index] -= 1
        return not missing[self._next]

    def next(self) -> Message | None:
        """The next message of the plan if its gradients are ready."""
        if self._missing[self._next]:
            return None
        self._next += 1
        return self.plan[self._next - 1]


def credit_of(ordering: Ordering) -> int | None:
    """An ordering's credit in bytes, if it has one."""
    return ordering.credit_bytes if isinstance(ordering, HasCredit) else None


@dataclass(slots=True)
class Waiting:
    """Messages that are made and not decided. What goes next is picked as if nothing were in flight; an ordering with
    keys is not asked about all that waits, a heap answers."""

    ordering: Ordering
    _key: Callable[[Message], tuple[int, ...]] | None = field(init=False)
    _heap: list[tuple[tuple[int, ...], int, Message]] = field(default_factory=list)
    _messages: dict[int, Message] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._key = self.ordering.key if isinstance(self.ordering, Keyed) else None

    def __len__(self) -> int:
        return len(self._heap) or len(self._messages)

    def add(self, message: Message) -> None:
        """A message is made: with keys O(log n), else it joins those that the ordering is asked about."""
        if self._key is not None:
            heappush(self._heap, (self._key(message), message.index, message))
        else:
            self._messages[message.index] = message

    def pick(self, now_s: float) -> Message:
        """What goes next. Raises: PlanError if the ordering picks nothing, or something else."""
        if self._heap:
            return self._heap[0][2]
        picked = self.ordering.pick(tuple(self._messages.values()), (), now_s)
        if picked is None or picked.index not in self._messages:
            raise PlanError(
                f"{self.ordering.card.name} picks {picked} of {len(self._messages)} messages with nothing in flight; "
                "pick one of them"
            )
        return picked

    def remove(self, picked: Message) -> None:
        """Take out what was picked last."""
        if self._heap:
            heappop(self._heap)
        else:
            del self._messages[picked.index]


@dataclass(slots=True)
class LookAhead:
    """How many bytes are decided beyond those in flight, so that no lane waits for a control round.

    Decided is not recalled: more than a round needs would only delay what is urgent.
    """

    limit_bytes: int
    nbytes: int = 0

    def learn(self, started_bytes: int, window_bytes: int, ran_dry: bool) -> None:
        """After a round with messages waiting all the while: what started during it, and what it decided.

        Where lanes ran dry nobody knows how much would have started: try twice as much.
        """
        wanted = max(2 * self.nbytes, window_bytes) if ran_dry else round(self.nbytes + MARGIN * started_bytes) // 2
        self.nbytes = min(wanted, self.limit_bytes)


@dataclass(slots=True)
class Coordinator:
    """Who decides in a negotiated step: asks packing and ordering, on the globally ready set.

    `plan` holds all messages of a rank-invariant packing, and `needs` what they need (default: worked out, which walks
    over all of them). A window is told in at most `capacity` numbers.
    """

    packing: Packing
    ordering: Ordering
    segments: Sequence[Segment]
    plan: tuple[Message, ...] | None = None
    capacity: int | None = None
    needs: Needs | None = None
    _cycle_s: float = DEFAULT_CYCLE_S
    _unpacked: list[Segment] = field(default_factory=list)
    _waiting: Waiting = field(init=False)
    _credit_bytes: int | None = field(init=False)
    _seen: set[int] = field(default_factory=set)
    _num_made: int = 0
    _needs: Needs = field(init=False)
    _missing: list[int] = field(init=False)

    def __post_init__(self) -> None:
        if self.plan is None and self.packing.rank_invariant:
            self.plan = make_plan(self.packing, self.segments)
        self._waiting = Waiting(self.ordering)
        self._credit_bytes = credit_of(self.ordering)
        self._needs = needs_of(self.plan or ()) if self.needs is None else self.needs
        self._missing = list(self._needs.num_parameters)

    @property
    def look_again_s(self) -> float:
        """Seconds until the next cycle may begin: none while messages wait."""
        return 0.0 if self._waiting else self._cycle_s

    @property
    def has_waiting(self) -> bool:
        """Whether messages are made and not decided."""
        return len(self._waiting) > 0

    def decide(
        self,
        ready_everywhere: Sequence[int],
        in_flight: Sequence[Message],
        now_s: float,
        *,
        queued: Sequence[Message] = (),
        ahead_bytes: int = 0,
    ) -> list[Message]:
        """The window of decisions: messages that go next, in order. `ready_everywhere`: parameter indices ready on all
        ranks so far; `in_flight` and `queued`: what was decided before and travels, or has not yet started.

        An ordering that keeps the order of what was made loses nothing by deciding on all of it, and no ordering does
        once nothing more can become ready. Else a more urgent message may come: then an ordering with credit decides
        while it has some, and any other one for the free lanes and `ahead_bytes` beyond.
        """
        # Masks hold everything ready since the step began, so most of it was seen in an earlier round.
        fresh = [index for index in ready_everywhere if index not in self._seen]
        self._seen.update(fresh)
        self._make_messages(fresh)
        num_decided, queued_bytes = len(in_flight) + len(queued), sum(message.nbytes for message in queued)
        decided_bytes = queued_bytes + sum(message.nbytes for message in in_flight)
        window: list[Message] = []
        room = self.capacity
        while self._waiting and self._may_decide(num_decided, decided_bytes, queued_bytes, ahead_bytes):
            picked = self._waiting.pick(now_s)
            # At least one message goes, whatever its size.
            if room is not None and (room := room - self.numbers_of(picked)) < 0 and window:
                break
            self._waiting.remove(picked)
            window.append(picked)
            num_decided, decided_bytes = num_decided + 1, decided_bytes + picked.nbytes
            queued_bytes += picked.nbytes
        return window

    def numbers_of(self, message: Message) -> int:
        """How many numbers tell a rank which message this is."""
        return 1 if self.plan is not None else 1 + NUMBERS_A_SEGMENT * len(message.segments)

    def _may_decide(self, num_decided: int, decided_bytes: int, queued_bytes: int, ahead_bytes: int) -> bool:
        # Nothing can become ready that would be more urgent, so deciding on all costs no freedom and saves rounds.
        everything_ready = len(self._seen) == len(self.segments) and not self._unpacked
        if self.ordering.rank_invariant or everything_ready or num_decided == 0:
            return True
        if self._credit_bytes is not None:
            return decided_bytes < self._credit_bytes
        return num_decided < self.ordering.depth or queued_bytes <= ahead_bytes

    def _make_messages(self, fresh: Sequence[int]) -> None:
        if self.plan is not None:
            self._complete(self.plan, fresh)
            return
        self._unpacked.extend(self.segments[index] for index in fresh)
        if self._waiting or not self._unpacked:
            return  # late binding: what is ready while messages queue up is packed together
        packed = self.packing.pack(self._unpacked)
        self._cycle_s = DEFAULT_CYCLE_S if packed.look_again_s is None else packed.look_again_s
        taken = _elements(packed.groups)
        for segment in self._unpacked:
            # A packing may leave parameters for later, but the rest of one that it cut would be packed again from its
            # start.
            if taken.get(segment.name, segment.numel) != segment.numel:
                raise PlanError(
                    f"{self.packing.card.name}: {taken[segment.name]} of {segment.numel} elements of {segment.name} "
                    "are packed; what is cut must go out whole, or not at all yet"
                )
        self._unpacked = [segment for segment in self._unpacked if segment.name not in taken]
        for group in packed.groups:
            self._waiting.add(Message(self._num_made, group))
            self._num_made += 1

    def _complete(self, plan: Sequence[Message], fresh: Sequence[int]) -> None:
        """Messages of the plan may overtake each other: each is made with the last parameter that it needs."""
        for index in fresh:
            for message_index in self._needs.one_more(index, self._missing):
                self._waiting.add(plan[message_index])
