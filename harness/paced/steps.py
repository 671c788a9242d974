"""What a paced script's steps took, and how much of it its messages cost.

A step ends where an optimizer has stepped. Every fourth step is *free*: its messages take no link time. Exposed time is
the median of the other steps minus the median of the free ones, so it is measured and needs no look inside the script:
what computation hides is not in it, whatever hides it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from fabric.cluster import FabricSpec
from fabric.rates import format_rate
from harness.paced.link_client import Carrier, Paid
from harness.paced.pacing import PacedTraffic
from results.files import write_json

NUM_WARMUP = 3  # DDP makes new buckets after its first step
FREE_EVERY = 4


@dataclass(frozen=True, slots=True)
class PacedStep:
    """One step: its time, and what it sent (payload bytes, the mean over ranks) and asked the link for."""

    time_s: float
    num_bytes: float
    num_messages: int
    link_s: float
    is_free: bool


class StepMeter:
    """Told of every optimizer step by `ended`; the first optimizer that steps sets the beat."""

    def __init__(self, traffic: PacedTraffic, clock: Callable[[], float]) -> None:
        self.steps: list[PacedStep] = []
        self.is_free = False
        self._traffic, self._clock = traffic, clock
        self._optimizer: object | None = None
        self._started: tuple[float, float, int, float] | None = None
        self._num_ended = 0

    def ended(self, optimizer: object) -> None:
        """`optimizer` has stepped."""
        if self._optimizer is None:
            self._optimizer = optimizer
        # Scripts with several optimizers (GANs) step each of them in one iteration.
        if optimizer is not self._optimizer:
            return
        traffic = self._traffic
        now = (self._clock(), traffic.num_bytes, traffic.num_messages, traffic.link_s)
        self._num_ended += 1
        if self._started is not None and self._num_ended > NUM_WARMUP:
            before_s, num_bytes, num_messages, link_s = self._started
            self.steps.append(
                PacedStep(now[0] - before_s, now[1] - num_bytes, now[2] - num_messages, now[3] - link_s, self.is_free)
            )
        self._started = now
        # Free steps are spread over the run, so slow drift of the machine cancels in the difference.
        self.is_free = self._num_ended >= NUM_WARMUP and self._num_ended % FREE_EVERY == 0


@dataclass(frozen=True, slots=True)
class SometimesFree:
    """A carrier that takes no time in free steps."""

    carrier: Carrier
    meter: StepMeter

    def carry(self, flow: Hashable, work_s: float, paid: Paid) -> None:
        """As the inner carrier, with no link time in a free step."""
        self.carrier.carry(flow, 0.0 if self.meter.is_free else work_s, paid)

    def close(self) -> None:
        """Close the inner carrier."""
        self.carrier.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Medians over steps; None where there were not enough of them."""

    num_ranks: int
    rate_bps: float | None
    alpha_s: float
    num_steps: int
    num_free_steps: int
    step_s: float | None
    step_5th_s: float | None
    step_95th_s: float | None
    exposed_s: float | None
    link_s: float | None
    bytes_per_step: float | None
    messages_per_step: float | None

    def text(self) -> str:
        """For a terminal."""
        head = f"crossover-bench pace: rank 0 of {self.num_ranks}, {format_rate(self.rate_bps)}, α {_ms(self.alpha_s)}"
        if self.step_s is None or self.link_s is None or self.bytes_per_step is None:
            return f"{head}\n  {self.num_steps} steps measured; there must be {NUM_WARMUP + FREE_EVERY} optimizer steps"
        free = f"against {self.num_free_steps} steps without link time"
        lines = [
            f"step time     {_ms(self.step_s)}, median of {self.num_steps}"
            + (f" (5 % to 95 %: {_ms(self.step_5th_s)} to {_ms(self.step_95th_s)})" if self.step_5th_s else ""),
            f"exposed time  {'not known' if self.exposed_s is None else _ms(self.exposed_s)}, {free}",
            f"link time     {_ms(self.link_s)} per step",
            f"bytes         {self.bytes_per_step / 1e6:.3f} MB sent per step",
            f"messages      {self.messages_per_step:g} per step",
        ]
        return "\n  ".join([head, *lines])

    def write(self, path: Path) -> None:
        """As JSON, whole or not at all. Raises: OSError where it cannot be written."""
        write_json(path, asdict(self))


def report_of(spec: FabricSpec, steps: list[PacedStep]) -> StepReport:
    """What the steps of a script on `spec` come to."""
    paced, free = ([step for step in steps if step.is_free is is_free] for is_free in (False, True))
    times_s = [step.time_s for step in paced]
    spread = quantiles(times_s, n=20) if len(times_s) > 1 else [None] * 19
    return StepReport(
        num_ranks=spec.num_ranks,
        rate_bps=spec.rate_bps,
        alpha_s=spec.alpha_s,
        num_steps=len(paced),
        num_free_steps=len(free),
        step_s=_median(times_s),
        step_5th_s=spread[0],
        step_95th_s=spread[-1],
        exposed_s=median(times_s) - median(step.time_s for step in free) if paced and free else None,
        link_s=_median([step.link_s for step in paced]),
        bytes_per_step=_median([step.num_bytes for step in paced]),
        messages_per_step=_median([step.num_messages for step in paced]),
    )


def _median(values: list[float] | list[int]) -> float | None:
    return median(values) if values else None


def _ms(seconds: float | None) -> str:
    return "not known" if seconds is None else f"{seconds * 1e3:.3f} ms" if seconds else "0"
