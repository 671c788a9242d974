"""What a job does in a step: how long it computes, and when which message is ready."""

from dataclasses import dataclass
from math import isfinite

from crossover.errors import Refused
from crossover.theory import JobCost


@dataclass(frozen=True, slots=True)
class Bucket:
    """One message of a step: when it is ready after the turn began, and how long a free link needs for it."""

    ready_s: float
    link_s: float


@dataclass(frozen=True, slots=True)
class StepShape:
    """One job's step: its computation, and its buckets in the order in which backward makes them ready.

    `forward_s` is how long the update and the forward pass take, from the start of the turn; only tick-tock needs it.
    """

    compute_s: float
    buckets: tuple[Bucket, ...]
    forward_s: float | None = None

    def __post_init__(self) -> None:
        ready = [bucket.ready_s for bucket in self.buckets]
        if ready != sorted(ready) or any(not 0 <= ready_s <= self.compute_s for ready_s in ready):
            raise Refused(f"buckets become ready in order, within the {self.compute_s} s of compute, not at {ready}")
        times_s = (self.compute_s, *(bucket.link_s for bucket in self.buckets))
        if any(not (isfinite(time_s) and time_s >= 0) for time_s in times_s):
            raise Refused(f"compute and link times are seconds from 0, not {times_s}: measure the job alone first")
        if self.forward_s is not None and not 0 <= self.forward_s <= self.compute_s:
            raise Refused(f"forward_s must lie within the {self.compute_s} s of compute, not {self.forward_s}")

    @classmethod
    def without_overlap(
        cls, compute_s: float, communication_s: float, *, forward_s: float | None = None
    ) -> "StepShape":
        """All communication after the computation."""
        return cls(compute_s, (Bucket(compute_s, communication_s),), forward_s)

    @classmethod
    def even(cls, compute_s: float, communication_s: float, *, forward_s: float, num_buckets: int) -> "StepShape":
        """Equal buckets, ready at equal distances from `forward_s` to the end of the computation (wait-free
        backward)."""
        if num_buckets < 1:
            raise Refused(f"num_buckets must be 1 or more, not {num_buckets}")
        each_s = (compute_s - forward_s) / num_buckets
        ready = (min(compute_s, forward_s + each_s * index) for index in range(1, num_buckets + 1))
        buckets = tuple(Bucket(ready_s, communication_s / num_buckets) for ready_s in ready)
        return cls(compute_s, buckets, forward_s)

    def cost(self) -> JobCost:
        """c, m and the step time alone."""
        end_s = 0.0
        for bucket in self.buckets:
            end_s = max(end_s, bucket.ready_s) + bucket.link_s
        return JobCost(self.compute_s, sum(bucket.link_s for bucket in self.buckets), max(self.compute_s, end_s))
