"""What one rank of a pipeline measures of itself: a turn around each pass, when steps ended, how long it computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

from baselines.parallelism.api import Action, Backward, Forward, Update
from crossover import TurnTaking
from harness.trace import Recorder

UPDATE = "update"


class PipelineMeter:
    """Takes a lease for each pass or update and notes the times; a step ends with every `updates_per_step`-th update.

    Leases are taken aside: hosts order the passes of their jobs each for itself, since a pipeline's messages carry
    names and may overtake each other, and turns that go round strictly would keep a device idle for a job that waits
    for a message (decision 47).
    """

    def __init__(
        self, turns: TurnTaking, recorder: Recorder, *, updates_per_step: int, on_step: Callable[[int], None]
    ) -> None:
        self.ends_s: list[float] = []
        self.start_s = 0.0
        self.paused_s = 0.0
        self._moments_s: list[float] = []
        self._turns, self._recorder, self._on_step = turns, recorder, on_step
        self._updates_per_step, self._num_updates = updates_per_step, 0

    @contextmanager
    def segment(self, action: Action) -> Iterator[None]:
        """One pass or update, in a turn of its own."""
        with self._recorder.span("turn", "wait"):
            lease = self._turns.acquire(aside=True)
        try:
            # Under exclusive sharing a job begins with its first lease, long after it was ready.
            self.start_s = self.start_s or perf_counter()
            with self._recorder.span("compute", name_of(action)):
                yield
        finally:
            self._turns.release(lease)
        # Behind the release: whoever waits for the device need not wait for the books.
        if isinstance(action, Update):
            self._updated()

    def _updated(self) -> None:
        # A rank with several stages updates each of them; only the last ends its step.
        self._num_updates += 1
        if self._num_updates % self._updates_per_step == 0:
            self._moments_s.append(perf_counter())
            self.ends_s.append(self._moments_s[-1] - self.paused_s)
            self._on_step(len(self.ends_s) - 1)

    def step_times_s(self) -> list[float]:
        """From one step's update to the next one's, the first from the first pass."""
        starts_s = [self.start_s, *self.ends_s]
        return [end - start for start, end in zip(starts_s, self.ends_s, strict=False)]

    def busy_s(self, num_warmup: int) -> float:
        """Seconds in passes after the warm-up."""
        measured = self._recorder.between(*self.window(num_warmup))
        passes = [span for span in measured.spans if span.track == "compute" and not span.name.startswith(UPDATE)]
        return sum(span.end_s - span.start_s for span in passes)

    def window(self, num_warmup: int) -> tuple[float, float]:
        """From the end of the warm-up to the end of the last step, evaluations among them."""
        return self._moments_s[num_warmup - 1], self._moments_s[-1]


def name_of(action: Action) -> str:
    """As traces show it: `forward 2 of stage 1`."""
    if isinstance(action, Update):
        return f"{UPDATE} of stage {action.stage}"
    kind = {Forward: "forward", Backward: "backward"}.get(type(action), "recompute")
    return f"{kind} {action.micro_batch} of stage {action.stage}"
