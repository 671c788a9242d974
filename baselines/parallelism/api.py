"""What a pipeline's schedule says: for each rank the passes over micro-batches in order, with the weights they use.

A schedule is data. It names no tensor and no time, so the same actions are checked without running, trained in
lockstep, timed on a virtual clock and executed among processes. What travels follows from the actions
(`baselines.parallelism.programs`). Stages and ranks count from 0; a version of the weights counts the updates in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable


class ParallelismError(ValueError):
    """A schedule, split or plan that cannot be; the message names the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelCard:
    """The entry of a schedule or planner in the catalogue."""

    name: str
    summary: str
    paper: str


@dataclass(frozen=True, slots=True)
class Forward:
    """Forward of a micro-batch on a stage, with the weights of `version`. Without `keep` only its input stays."""

    stage: int
    micro_batch: int
    version: int
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Recompute:
    """The forward again, now keeping what backward needs."""

    stage: int
    micro_batch: int
    version: int


@dataclass(frozen=True, slots=True)
class Backward:
    """Backward of a micro-batch. A `version` other than its forward's: the activations of the one, the weights of the
    other."""

    stage: int
    micro_batch: int
    version: int


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer step with the mean gradient of the last `num_micro_batches` backwards; it makes `version`."""

    stage: int
    version: int
    num_micro_batches: int


Pass = Forward | Recompute | Backward
Action = Pass | Update
Actions = tuple[Action, ...]


@runtime_checkable
class PipelineSchedule(Protocol):
    """A pipeline's schedule; a frozen dataclass in a file of this folder.

    A `synchronous` one is asked for the micro-batches of one step and ends with an update of every stage. Any other one
    is asked for all micro-batches of a run at once, because its steps overlap.
    """

    card: ClassVar[ParallelCard]
    synchronous: ClassVar[bool]

    @property
    def stages_per_rank(self) -> int:
        """Stages that a rank holds; their number must divide over the ranks."""

    def actions(self, rank: int, num_ranks: int, num_micro_batches: int) -> Actions:
        """What `rank` does, in order. Raises: ParallelismError for numbers that the schedule cannot serve."""
        ...

    def peak_stash(self, rank: int, num_ranks: int, num_micro_batches: int) -> int:
        """The formula for the most micro-batches whose activations a rank holds (with several stages per rank: of all
        of them together)."""
        ...

    def bubble(self, num_ranks: int, num_micro_batches: int) -> float:
        """The formula for the idle share of a rank's time: equal stages, nothing to pay for messages and updates."""
        ...


@runtime_checkable
class CorrectsDelay(Protocol):
    """An asynchronous schedule that makes up for the age of its weights. `stage` counts from 0, `step` from 0."""

    def learning_rate_scale(self, stage: int, num_stages: int, step: int) -> float:
        """What the learning rate of a stage is multiplied by."""
        ...

    def discrepancy(self, stage: int, num_stages: int, step: int) -> tuple[float, float] | None:
        """(delay in steps, decay γ of the average of weight differences), or None: backward uses the weights as they
        are, in every step."""
        ...


def require_positive(**numbers: int) -> None:
    """Raises: ParallelismError naming the first number below 1."""
    for name, number in numbers.items():
        if number < 1:
            raise ParallelismError(f"{name} is {number}; use at least 1")
