"""Which message goes next: pure bookkeeping between packing, ordering and the engine.

Two ways to agree over ranks. A static plan: packing and ordering are rank-invariant, so every
rank makes the same messages and sends them in the plan's order, without talking. Negotiated:
the coordinator alone asks packing and ordering about what is ready on all ranks and sends its
decisions round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baselines.api import Group, Message, Ordering, Packing, Segment

DEFAULT_CYCLE_S = 0.001


class PlanError(RuntimeError):
    """A packing that loses or doubles elements: a defect of the plug-in."""


def make_plan(packing: Packing, segments: Sequence[Segment]) -> tuple[Message, ...]:
    """All messages of a step for a rank-invariant packing, each element exactly once.

    Raises: PlanError naming the parameter that is lost or sent twice.
    """
    groups = packing.pack(segments, 0.0).groups
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


@dataclass(slots=True)
class StaticDispatch:
    """The messages of one step, sent in the plan's order as their gradients become ready."""

    plan: tuple[Message, ...]
    _missing: list[int] = field(init=False)
    _messages_of: dict[int, list[int]] = field(init=False)
    _next: int = 0

    def __post_init__(self) -> None:
        self._missing = [len({s.index for s in message.segments}) for message in self.plan]
        self._messages_of = {}
        for message in self.plan:
            for index in {s.index for s in message.segments}:
                self._messages_of.setdefault(index, []).append(message.index)

    def ready(self, index: int) -> bool:
        """The gradient of parameter `index` is ready on this rank; whether a message may go now.

        May be called from another thread than `next`: this one alone writes `_missing`, that one
        `_next`.
        """
        for message_index in self._messages_of[index]:
            self._missing[message_index] -= 1
        return self.has_next

    @property
    def has_next(self) -> bool:
        """Whether a message could go now."""
        position = self._next  # read once: the other thread moves it on
        return position < len(self.plan) and self._missing[position] == 0

    def next(self) -> Message | None:
        """The next message of the plan if its gradients are ready."""
        if self.has_next:
            self._next += 1
            return self.plan[self._next - 1]
        return None

    @property
    def all_sent(self) -> bool:
        return self._next == len(self.plan)


@dataclass(slots=True)
class Coordinator:
    """Rank 0's side of a negotiated step: asks packing and ordering, on the globally ready set."""

    packing: Packing
    ordering: Ordering
    segments: Sequence[Segment]
    _cycle_s: float = DEFAULT_CYCLE_S
    _unpacked: list[Segment] = field(default_factory=list)
    _pending: list[Message] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)
    _num_made: int = 0
    _static: StaticDispatch | None = None

    def __post_init__(self) -> None:
        if self.packing.rank_invariant:
            self._static = StaticDispatch(make_plan(self.packing, self.segments))

    @property
    def look_again_s(self) -> float:
        """Seconds until the next cycle may begin: none while messages wait for a lane."""
        return 0.0 if self._pending else self._cycle_s

    def decide(self, ready_everywhere: Sequence[int], in_flight: Sequence[Message], now_s: float) -> list[Group]:
        """The window of decisions: groups to send now, in order. `ready_everywhere`: parameter
        indices ready on all ranks so far.

        An ordering that keeps the order of what was made loses nothing by deciding on all of it; any
        other decides for the free lanes only, since a more urgent message may come.
        """
        fresh = [index for index in ready_everywhere if index not in self._seen]
        self._seen.update(fresh)
        self._make_messages(fresh, now_s)
        window: list[Group] = []
        flying = list(in_flight)
        free = len(self._pending) if self.ordering.rank_invariant else self.ordering.depth - len(flying)
        while len(window) < free:
            picked = self.ordering.pick(self._pending, flying, now_s)
            if picked is None:
                break
            self._pending.remove(picked)
            flying.append(picked)
            window.append(picked.segments)
        return window

    def _make_messages(self, fresh: Sequence[int], now_s: float) -> None:
        if self._static is not None:
            for index in fresh:
                self._static.ready(index)
            while message := self._static.next():
                self._pending.append(message)
            return
        self._unpacked.extend(self.segments[index] for index in fresh)
        if self._pending or not self._unpacked:
            return  # late binding: what is ready while messages queue up is packed together
        packed = self.packing.pack(self._unpacked, now_s)
        self._cycle_s = DEFAULT_CYCLE_S if packed.look_again_s is None else packed.look_again_s
        taken = _elements(packed.groups)
        for segment in self._unpacked:
            if taken.get(segment.name, segment.numel) != segment.numel:
                raise PlanError(
                    f"{self.packing.card.name}: {taken[segment.name]} of {segment.numel} elements of {segment.name} "
                    "are packed; what is cut must go out whole, or not at all yet"
                )
        self._unpacked = [segment for segment in self._unpacked if segment.name not in taken]
        for group in packed.groups:
            self._pending.append(Message(self._num_made, group))
            self._num_made += 1
