"""Drives a rank's core on real transports: whoever brings an event carries out what follows from it.

An event is a gradient that lets a message go (brought by autograd's thread), the answer of a primitive (by the
library's), or the link's turn. It is put on a queue, and whoever finds nobody at work on the queue works it off. So no
thread has to wake up between a gradient's readiness and its message, or between two primitives of a message; and since
one thread at a time is at work, the core needs no lock.

Two things take a thread of its own. A negotiation's next look comes at a time of no event. And compression is work for
another core: on autograd's thread it would hold up backward.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from time import perf_counter

from baselines.api import Payload
from crossover.arbiter.scheduling import short_slices
from harness.engine.core import Action, Core, Landed, LinkTurn, LookAgain, Start
from harness.engine.dispatch import StaticDispatch
from harness.engine.link_turns import LinkTurns
from harness.engine.negotiate import Negotiation
from harness.engine.streams import Streams
from harness.engine.transport import CONTROL, Done, Transport
from harness.trace import Recorder

Work = Callable[[], None]


class Communication:
    """Messages of one rank on `transport`. `error` is set, and `changed` notified, when it failed.

    `landed` are the parameters of this step whose gradients are reduced; it grows under `changed`.
    """

    def __init__(
        self,
        core: Core,
        transport: Transport,
        *,
        recorder: Recorder,
        streams: Streams,
        link: LinkTurns | None,
        looks_again: bool,
        compresses: bool,
    ) -> None:
        self._core, self._transport, self._recorder, self._streams = core, transport, recorder, streams
        self._link = link
        self._work: deque[Work] = deque()
        self._at_work = threading.Lock()
        # Made once: a closure per primitive is time on every small message's way.
        self._receivers = {lane: self.receiver(lane) for lane in (CONTROL, *range(core.num_lanes))}
        self._started_s: dict[int, float] = {}
        self._news: list[str] = []  # parameters that have landed, of which the main thread does not know yet
        self.changed = threading.Condition()
        self.landed: set[str] = set()
        self._awaited: Callable[[], bool] | None = None  # what the main thread waits for
        self.error: BaseException | None = None
        self._alarm = Alarm(self._look) if looks_again or compresses else None
        self._hands_over = compresses

    # ---- for the main thread

    def begin(self, dispatch: StaticDispatch | Negotiation, numels: Mapping[str, int]) -> None:
        """Work on a step from now on; the one before is complete."""
        with self._at_work:  # somebody may still be looking again at the last step
            self.landed = set()
            self._core.begin(dispatch, numels)
        self._work_off()  # what came meanwhile

    def ready(self, index: int) -> None:
        """The gradient of parameter `index` is ready. Call it from one thread at a time."""
        if self._core.ready(index):
            self._bring(self._go_on)

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Block the main thread until `done()`, which depends on what has landed, or until communication has failed."""
        with self.changed:
            self._awaited = done
            self.changed.wait_for(lambda: done() or self.error is not None)
            self._awaited = None

    def stop(self) -> None:
        """End its thread, if it has one."""
        if self._alarm is not None:
            self._alarm.stop()

    def receiver(self, lane: int) -> Done:
        """What a transport calls with the answer of a primitive on `lane`, from any thread."""
        return lambda answer: self._bring(lambda: self._take_answer(lane, answer))

    # ---- for whoever brings an event

    def _bring(self, work: Work) -> None:
        """Put `work` on the queue, and work the queue off unless somebody is at it, who will then do it."""
        self._work.append(work)
        # Compression must not run on autograd's thread, where it would hold up backward.
        if self._hands_over and self._alarm is not None:
            self._alarm.ring_in(0.0)
        else:
            self._work_off()

    def _look(self) -> None:
        self._work.append(self._go_on)
        self._work_off()

    def _work_off(self) -> None:
        # Whoever comes second leaves: the one at work sees its entry. The outer loop looks again after releasing, for
        # an entry that came between the last look and the release.
        while self._work and self._at_work.acquire(blocking=False):
            try:
                while self._work:
                    self._work.popleft()()
                    # Behind what follows from the event: who is woken takes the interpreter, and the link would wait.
                    self._tell()
            except BaseException as error:  # noqa: BLE001  reported by every later call of the main thread
                # Nothing later may run on a core that failed half-way.
                self._work.clear()
                with self.changed:
                    self.error = error
                    self.changed.notify_all()
            finally:
                self._at_work.release()

    def _go_on(self) -> None:
        """Begin the messages that may go, and look whether there is something to negotiate."""
        # One message at a time: carrying one out can already bring the answer that lets another go.
        while (actions := self._core.send()) is not None:
            self._carry_out(actions)
        self._carry_out(self._core.negotiate())

    def _take_answer(self, lane: int, answer: Payload | Exception) -> None:
        if isinstance(answer, Exception):
            raise answer
        self._carry_out(self._core.answered(lane, answer))
        if lane == CONTROL and isinstance(self._core.dispatch, Negotiation):
            for start_s, end_s in self._core.dispatch.cycles_s:
                self._recorder.add("control", "cycle", start_s, end_s)
            self._core.dispatch.cycles_s.clear()
        self._go_on()

    def _take_link(self, error: Exception | None) -> None:
        if error is not None:
            raise error
        self._started_s.clear()  # what was held until now has not been under way
        self._carry_out(self._core.link_granted())
        self._go_on()

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Start(lane=lane) if lane == CONTROL:
                    self._transport.start(action.real, lane, self._receivers[lane])
                case Start(lane=lane):
                    self._started_s.setdefault(lane, perf_counter())
                    with self._streams.lane(lane):
                        self._transport.start(action.real, lane, self._receivers[lane])
                case Landed():
                    self._note(action)
                case LookAgain(after_s):
                    assert self._alarm is not None, "a static plan has nothing to look at again"
                    self._alarm.ring_in(after_s)
                case LinkTurn():
                    self._turn(action)

    def _note(self, landed: Landed) -> None:
        now_s = perf_counter()
        start_s = self._started_s.pop(landed.lane, now_s)
        self._recorder.add(f"lane {landed.lane}", f"message {landed.message.index}", start_s, now_s)
        self._news += landed.names

    def _tell(self) -> None:
        if self._news:  # waking the main thread costs as much as sending: only when what it waits for is there
            with self.changed:
                self.landed.update(self._news)
                self._news.clear()
                if self._awaited is not None and self._awaited():
                    self.changed.notify_all()

    def _turn(self, turn: LinkTurn) -> None:
        assert self._link is not None, "the core was told that jobs share the link"
        if turn is LinkTurn.RELEASE:
            self._link.release()
        else:
            self._link.request(lambda error: self._bring(lambda: self._take_link(error)))


class Alarm:
    """Calls `ring` on a thread of its own, at the last time that was asked for."""

    def __init__(self, ring: Work) -> None:
        self._ring = ring
        self._delays_s: SimpleQueue[float | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="communication", daemon=True)
        self._thread.start()

    def ring_in(self, seconds: float) -> None:
        """Ring once in `seconds`, and at no time asked for before."""
        self._delays_s.put(seconds)

    def stop(self) -> None:
        """End the thread."""
        self._delays_s.put(None)
        self._thread.join(timeout=10)

    def _run(self) -> None:
        timeout_s: float | None = None
        with short_slices():
            while True:
                try:
                    # A later request replaces the one before it, as `ring_in` promises.
                    timeout_s = self._delays_s.get(timeout=timeout_s)
                except Empty:
                    timeout_s = None
                    self._ring()
                else:
                    if timeout_s is None:
                        return
