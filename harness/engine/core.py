"""A rank's decisions on the messages of a step: no I/O, no thread, no clock of its own.

    ready gradients ─► dispatch ─► message ─► its run (compressor and exchange) ─► Start … answered ─► Landed
                 (plan or negotiation)

Three drivers carry out what it says: the engine on process groups (`harness.engine.communication`), P of them in one
process (`harness.lockstep.ranks`), and the virtual clock (`harness.predict.worker`). A driver tells it what happened
and gets back what is to be done, as values:

    ready(index)              whether to ask on: a gradient may have completed a message
    send()                    the next message begins, if one may go now; ask again until it is None
    negotiate()               a round of control begins, or the time at which to look again
    answered(lane, payload)   a primitive is complete: the next one of its message, or the message has landed
    link_granted()            the link's turn has come: what waits for it goes

`send` and `negotiate` are apart since drivers differ in when they call them: time passes between two messages on the
virtual clock, and lockstep negotiates once an event. How a message runs is given: real tensors (`RankMessages`), or
sizes and stage costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapreplace
from typing import Protocol

from baselines.api import Message, Payload, Primitive
from harness.engine.dispatch import StaticDispatch
from harness.engine.negotiate import Negotiation
from harness.engine.reduction import Tagged
from harness.engine.traffic import Planned, Traffic
from harness.engine.transport import CONTROL

TAIL = 0.125  # of a step's elements; with less than this on its way a job gives the link back


class RunsMessage(Protocol):
    """One message's way through compressor and exchange."""

    def advance(self, answer: Payload | None) -> Tagged | None:
        """The next primitive, given the last one's answer (None at first); None once the message is complete."""


Opens = Callable[[Message, int], RunsMessage]  # a message and its lane


@dataclass(frozen=True, slots=True)
class Start:
    """Carry out `primitive` on `lane`, and tell the answer. Its bytes are counted."""

    lane: int
    primitive: Primitive | Planned
    tag: str

    @property
    def real(self) -> Primitive:
        """The primitive, for a driver whose messages hold tensors."""
        assert not isinstance(self.primitive, Planned), "a planned message has nothing to send"
        return self.primitive


@dataclass(frozen=True, slots=True)
class Landed:
    """`message` on `lane` is complete, and with it all of the parameters `names`."""

    lane: int
    message: Message
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookAgain:
    """Nothing to do, but `negotiate` again after so many seconds."""

    after_s: float


class LinkTurn(Enum):
    """Where jobs take turns on the link: ask for it, or give it back."""

    ASK = "ask"
    RELEASE = "release"


Action = Start | Landed | LookAgain | LinkTurn


@dataclass(slots=True)
class Underway:
    """A message between its making and its landing."""

    message: Message
    run: RunsMessage
    lane: int
    held: Tagged | None = None  # what waits for the link
    on_link: bool = False


@dataclass(slots=True)
class Core:
    """One rank among `world`; a message goes to one of `num_lanes`, each of which carries one at a time.

    `traffic` counts what starts. `clock` tells the time that policies see. With `shares_link` the link is asked for
    before the first message of a step goes, and given back once little of the step is left. `one_by_one`: messages
    travel one behind the other. One thread at a time; `ready` alone may be called by another.
    """

    opens: Opens
    world: int
    num_lanes: int
    traffic: Traffic
    clock: Callable[[], float]
    shares_link: bool = False
    one_by_one: bool = False
    dispatch: StaticDispatch | Negotiation = field(default_factory=lambda: StaticDispatch(()))
    left: dict[str, int] = field(default_factory=dict)  # elements of each parameter that have not landed
    # The gradient of a parameter, given by its index, is ready; whether something may be done about it. The dispatch's
    # own, since it is called per gradient, where a call more would hold backward up.
    ready: Callable[[int], bool] = field(init=False)
    _lanes: list[tuple[int, int]] = field(default_factory=list)  # heap: bytes or messages given to each, its number
    _underway: dict[int, Underway] = field(default_factory=dict)
    _next: Message | None = None
    _num_elements: int = 0
    _unsent: int = 0  # elements that no started message carries
    _has_link: bool = field(init=False)
    _asked_link: bool = False

    def __post_init__(self) -> None:
        self._has_link = not self.shares_link

    def begin(self, dispatch: StaticDispatch | Negotiation, numels: Mapping[str, int]) -> None:
        """A step in which `dispatch` decides on parameters of `numels` elements; the one before is complete."""
        self.dispatch, self.left, self._next = dispatch, dict(numels), None
        self._lanes = [(0, lane) for lane in range(self.num_lanes)]
        self._num_elements = self._unsent = sum(numels.values())
        self.ready = dispatch.ready

    def send(self) -> list[Action] | None:
        """Begin the next message if it may go now and its lane is free; None if not."""
        message = self._next = self._next or self.dispatch.next()
        if message is None:
            return None
        # Every rank must choose the same lane, so what is in flight just here does not count.
        given, lane = self._lanes[0]
        # The lane that every rank would choose may still be busy on this rank alone; taking another would mix up
        # messages.
        if lane in self._underway or not self._may_go(message):
            return None
        self._next = None
        # In turn where messages travel in turn; else as many bytes to each, so that small ones pass a large one.
        heapreplace(self._lanes, (given + (1 if self.one_by_one else message.nbytes), lane))
        # Made before the link is ours, so that the link never waits for a processor.
        own = self._underway[lane] = Underway(message, self.opens(message, lane), lane)
        self.traffic.num_messages += 1
        return self._advance(own, None)

    def negotiate(self) -> list[Action]:
        """Begin a round of control if it is time, or say when to look again; nothing for a static plan."""
        if isinstance(self.dispatch, StaticDispatch):
            return []
        # A message taken out of the plan but held back by its lane counts as in flight for those who decide.
        taken = self._in_flight() if self._next is None else [*self._in_flight(), self._next]
        asked = self.dispatch.cycle(taken, self.clock())
        if asked is None:
            return []
        if isinstance(asked, float):
            return [LookAgain(asked)]
        self.traffic.num_control_rounds += 1
        return [self.start(CONTROL, Tagged(asked, "control"))]

    def answered(self, lane: int, payload: Payload) -> list[Action]:
        """The primitive on `lane` is complete."""
        if lane != CONTROL:
            return self._advance(self._underway[lane], payload)
        assert isinstance(self.dispatch, Negotiation), "a static plan has nothing to negotiate"
        asked = self.dispatch.answered(payload)
        return [] if asked is None else [self.start(CONTROL, Tagged(asked, "control"))]

    def link_granted(self) -> list[Action]:
        """The link is this job's."""
        self._has_link = True
        held = [(own, own.held) for own in self._underway.values() if own.held is not None]
        return [action for own, tagged in held for action in self._start(own, tagged)]

    def start(self, lane: int, tagged: Tagged) -> Start:
        """The one place that primitives leave by, those between two steps too: here their bytes are counted."""
        self.traffic.send(tagged.tag, tagged.primitive, self.world)
        return Start(lane, tagged.primitive, tagged.tag)

    @property
    def is_held_back(self) -> bool:
        """Whether the next message waits for its lane, or for what is in flight."""
        return self._next is not None

    def message_on(self, lane: int) -> Message | None:
        """What is under way on `lane`."""
        own = self._underway.get(lane)
        return None if own is None else own.message

    def _may_go(self, message: Message) -> bool:
        """A lane is all that a static plan's next message waits for; else the ordering is asked."""
        dispatch = self.dispatch
        return isinstance(dispatch, StaticDispatch) or dispatch.may_go(message, self._in_flight(), self.clock())

    def _in_flight(self) -> list[Message]:
        return [own.message for own in self._underway.values()]

    def _advance(self, own: Underway, answer: Payload | None) -> list[Action]:
        tagged = own.run.advance(answer)
        return self._land(own) if tagged is None else self._start(own, tagged)

    def _start(self, own: Underway, tagged: Tagged) -> list[Action]:
        own.held = None
        # Only a message's first primitive waits for the link: taking it away between two rounds of an exchange would
        # have peers wait inside theirs.
        if not own.on_link:
            if not self._has_link:
                own.held = tagged
                return self._ask_for_link()
            own.on_link = True
            self._unsent -= own.message.numel
        return [self.start(own.lane, tagged)]

    def _ask_for_link(self) -> list[Action]:
        if self._asked_link:
            return []
        self._asked_link = True
        return [LinkTurn.ASK]

    def _land(self, own: Underway) -> list[Action]:
        del self._underway[own.lane]
        if isinstance(self.dispatch, Negotiation):
            self.dispatch.landed()
        left, complete = self.left, []
        for segment in own.message.segments:
            name = segment.name
            left[name] = still_left = left[name] - segment.stop + segment.start
            if not still_left:
                del left[name]
                complete.append(name)
        # A parameter cut over messages has landed with the last of them.
        landed = Landed(own.lane, own.message, tuple(complete))
        return [landed, LinkTurn.RELEASE] if self._gives_link_back() else [landed]

    def _gives_link_back(self) -> bool:
        """Once only a short tail is on its way: the next job's first message then fills the gaps of the last one's
        ring, and a tail delays nobody for long."""
        if not self.shares_link or not self._has_link or self._unsent:
            return False
        if sum(own.message.numel for own in self._underway.values()) > TAIL * self._num_elements:
            return False
        self._has_link = self._asked_link = False
        return True
