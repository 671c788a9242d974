"""A cluster whose workers differ: speeds, jitter, pauses, halts and slow links, as one value for every driver."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class VirtualClusterError(ValueError):
    """A cluster that cannot be; the message names the value and the remedy."""


class OnLoss(StrEnum):
    """What becomes of a run among processes when a worker's ends: it fails, or the others go on without it."""

    STOP = "stop"
    CONTINUE = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """`worker` computes nothing for `for_s` seconds from `at_s` on."""

    worker: int
    at_s: float
    for_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.at_s < math.inf and 0 <= self.for_s < math.inf):
            raise VirtualClusterError(
                f"worker {self.worker} halts at {self.at_s} s for {self.for_s} s; use seconds of 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbances:
    """What makes workers unequal.

    Attributes:
        slowdowns: by how much each worker computes longer than the fastest, [workers]; empty: all alike.
        jitter: standard deviation of the logarithm of a step's compute time; its mean stays.
        pause_probability: chance of a pause in a step.
        pause_s: mean of a pause, exponentially distributed.
        halts: workers that stop for a while.
        slow_links: by how much each worker's transfers take longer, [workers]; empty: all alike.
    """

    slowdowns: tuple[float, ...] = ()
    jitter: float = 0.0
    pause_probability: float = 0.0
    pause_s: float = 0.0
    halts: tuple[Halt, ...] = ()
    slow_links: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name, values in (("slowdowns", self.slowdowns), ("slow_links", self.slow_links)):
            if any(not 1.0 <= value < math.inf for value in values):
                raise VirtualClusterError(f"{name} are {values}; each must be 1 (as fast as the fastest) or more")
        if not 0 <= self.jitter <= 2:
            raise VirtualClusterError(f"jitter is {self.jitter}; use a standard deviation between 0 and 2")
        if not (0 <= self.pause_probability <= 1 and 0 <= self.pause_s < math.inf):
            raise VirtualClusterError(
                f"pauses of {self.pause_s} s with probability {self.pause_probability}; use a probability between 0 "
                "and 1, and seconds of 0 or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualCluster:
    """`num_workers` that compute `compute_s` per step, and servers behind one link of `alpha_s` + bytes × `beta_s`.

    Among processes the `num_servers` ranks behind the workers hold equal parts of the parameters, each behind such a
    link of its own, and a step lasts `compute_s` as disturbed, or as long as it really takes.
    """

    num_workers: int
    compute_s: float
    alpha_s: float = 0.0
    beta_s_per_byte: float = 0.0
    disturbances: Disturbances = Disturbances()
    num_servers: int = 1

    def __post_init__(self) -> None:
        if self.num_servers < 1:
            raise VirtualClusterError(f"num_servers is {self.num_servers}; there is at least 1")
        if self.num_workers < 1:
            raise VirtualClusterError(f"num_workers is {self.num_workers}; there is at least 1")
        if not 0 < self.compute_s < math.inf:
            raise VirtualClusterError(f"compute_s is {self.compute_s}; a step takes some time")
        if not (0 <= self.alpha_s < math.inf and 0 <= self.beta_s_per_byte < math.inf):
            raise VirtualClusterError(
                f"alpha_s is {self.alpha_s} and beta_s_per_byte {self.beta_s_per_byte}; use 0 (no time) or more"
            )
        own = self.disturbances
        for name, values in (("slowdowns", own.slowdowns), ("slow_links", own.slow_links)):
            if values and len(values) != self.num_workers:
                raise VirtualClusterError(
                    f"{len(values)} {name} for {self.num_workers} workers; give one for each, or none"
                )
        if strangers := [halt.worker for halt in own.halts if not 0 <= halt.worker < self.num_workers]:
            raise VirtualClusterError(
                f"worker {strangers[0]} halts and there are {self.num_workers}; they count from 0"
            )

    def computed_at_s(self, worker: int, clock: int, start_s: float, seed: int) -> float:
        """When a step that begins at `start_s` is computed. Depends on its arguments alone, not on the schedule."""
        own = self.disturbances
        # Seeded by what names the step, so every method meets the same slow steps in whatever order it runs them.
        rng = random.Random(f"{seed}/{worker}/{clock}")
        duration_s = self.compute_s * _of(own.slowdowns, worker)
        if own.jitter:
            # Less half the variance, or the mean step would grow with the jitter.
            duration_s *= math.exp(rng.gauss(0.0, own.jitter) - own.jitter**2 / 2)
        if rng.random() < own.pause_probability:
            duration_s += rng.expovariate(1.0) * own.pause_s
        # In order of time: a step that one halt lengthens may run into the next, and halts may overlap.
        going_s = start_s
        for halt in sorted((halt for halt in own.halts if halt.worker == worker), key=lambda halt: halt.at_s):
            until_s = halt.at_s + halt.for_s
            if going_s < until_s and start_s + duration_s > halt.at_s:
                duration_s += until_s - max(going_s, halt.at_s)
                going_s = until_s
        return start_s + duration_s

    def transfer_s(self, worker: int, num_bytes: float) -> float:
        """Seconds that the servers' link is taken by `num_bytes` to or from `worker`, start-up apart."""
        return num_bytes * self.beta_s_per_byte * _of(self.disturbances.slow_links, worker)


def _of(values: Sequence[float], worker: int) -> float:
    return values[worker] if values else 1.0
