"""Drives a core whose messages are plain sums in an order known beforehand: they go straight from the hook.

Nothing is left to decide once such a message is ready, so the library may hold many of them: it begins the next one by
itself, as it does for torch's DDP. And nobody needs to be told of an end before somebody waits for it. So no thread
but the main one and autograd's is involved. Those two never run at once, so there is no lock either. On a GPU all of
them have one stream: a message is gathered as soon as its gradients are there, while those before it are on their way.

A message has landed when it is looked at: in `wait_until`, behind backward, which a look would hold up; or when the
next one finds its lane taken. Where a GPU's stream waits for the sum (NCCL), what follows the sum is launched at once,
behind it, and the host waits for the device in `wait_until` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from time import perf_counter

from torch import Tensor

from baselines.api import AllReduce
from harness.engine.core import Action, Core, Landed, Start
from harness.engine.dispatch import StaticDispatch
from harness.engine.negotiate import Negotiation
from harness.engine.streams import Streams
from harness.engine.transport import HeldByLibrary, QueuesSums
from harness.trace import Recorder

NUM_QUEUED = 64  # messages that the library holds at most; more would only keep their buffers


class StraightSums:
    """Messages of one rank on `transport`. `error` is set when it failed; `landed` are the parameters of this step
    whose gradients are known to be reduced."""

    def __init__(self, core: Core, transport: QueuesSums, *, recorder: Recorder, streams: Streams) -> None:
        self._core, self._transport, self._recorder, self._streams = core, transport, recorder, streams
        self._held: deque[tuple[int, Tensor, HeldByLibrary, float]] = deque()  # with lane and start, oldest first
        self._launched: list[tuple[int, int, float]] = []  # lane, message and start of what ends on the device
        self.landed: set[str] = set()
        self.error: BaseException | None = None

    def begin(self, dispatch: StaticDispatch | Negotiation, numels: Mapping[str, int]) -> None:
        """Work on a step from now on; the one before is complete."""
        self.landed = set()
        self._core.begin(dispatch, numels)

    def ready(self, index: int) -> None:
        """The gradient of parameter `index` is ready; send what that completes."""
        if self.error is None and self._core.ready(index):
            self._attempt(self._go_on)

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Block until `done()`, which depends on what has landed, or until communication has failed."""
        while self.error is None and not done():
            assert self._held, "waiting for a gradient of which no message was made"
            self._attempt(self._land_oldest)
        if self._launched and self.error is None:
            self._attempt(self._until_idle)

    def stop(self) -> None:
        """Nothing is held."""

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  reported by every later call of the main thread
            self.error = error

    def _go_on(self) -> None:
        self._send()
        # In order of start, as the library works them off: the first that is not complete ends the look.
        while self._held and self._may_land(*self._held[0][1:3]):
            self._land_oldest()

    def _may_land(self, tensor: Tensor, work: HeldByLibrary) -> bool:
        return self._transport.in_stream(tensor) or (self._core.is_held_back and work.is_completed())

    def _send(self) -> None:
        while (actions := self._core.send()) is not None:
            for action in actions:
                self._carry_out(action)

    def _land_oldest(self) -> None:
        lane, tensor, work, start_s = self._held[0]
        message = self._core.message_on(lane)
        assert message is not None, "a sum is held, and no message"
        with self._streams.lane(lane):
            work.wait()
        # Taken out only now: if waiting fails, the message has not landed.
        self._held.popleft()
        if self._transport.in_stream(tensor):
            self._launched.append((lane, message.index, start_s))
        else:
            self._note_end(lane, message.index, start_s)
        for action in self._core.answered(lane, (tensor,)):
            self._carry_out(action)
        self._send()

    def _until_idle(self) -> None:
        """The host learns of all ends at once."""
        self._streams.until_idle()
        for launched in self._launched:
            self._note_end(*launched)
        self._launched.clear()

    def _note_end(self, lane: int, message: int, start_s: float) -> None:
        self._recorder.add(f"lane {lane}", f"message {message}", start_s, perf_counter())

    def _carry_out(self, action: Action) -> None:
        match action:
            case Start(lane, AllReduce(tensor)):
                with self._streams.lane(lane):
                    work = self._transport.queue(tensor)
                self._held.append((lane, tensor, work, perf_counter()))
            case Landed(names=names):
                self.landed.update(names)
            case _:
                raise AssertionError(f"{action} is no part of a plain sum")
