"""How `crossover.attach` speaks to each framework. An integration is a module with the functions of `Integration`.

    plain      any torch models and optimizers        computing.py   forward and backward begin and end turns
    ddp        torch DistributedDataParallel          exact.py       step() updates at the beginning of a turn
    horovod    hvd.DistributedOptimizer               deferring.py   step() and zero_grad() are put off to the next turn
    deepspeed  DeepSpeedEngine                        overriding.py  methods of single objects replaced for a time
                                                      unwrapping.py  optimizers in optimizers (accelerate, Lightning)
    huggingface, lightning: callbacks for trainers    workers.py     devices, workers and how they agree
                                                      layer_clock.py layers' times, for `crossover run --profile`

Frameworks are imported inside the modules that need them, which are themselves imported when something is attached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from crossover.client import TurnTaking
from crossover.keeper import TurnKeeper

REST_LIMIT_S = 0.02


class ReleasePoint(StrEnum):
    """When a turn's release may come: when the device has done its work (an event that is complete), or when the
    work has only been launched. The same on a CPU."""

    EVENT = "event"
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a job takes its turns. With `defer`, an update waits for the next turn instead of beginning it. A turn that
    rests longer than `rest_limit_s` between update and forward is interrupted (None:
    never); `is_sole` says that the job has no other worker."""

    release: ReleasePoint = ReleasePoint.EVENT
    defer: bool = False
    rest_limit_s: float | None = REST_LIMIT_S
    is_sole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A job's workers as one of them sees them.

    `agree` returns the largest of what all workers give (a collective: all workers attach); None for a sole worker.
    `device` names this worker's device among those of its host, the same for every job. `strict` says why turns must be
    strict here; empty: they need not. `num_local` is how many of the workers are on this host; None: unknown. `world`
    counts those of all hosts.
    """

    agree: Callable[[int], int] | None
    device: str
    strict: str = ""
    num_local: int | None = None
    world: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bond:
    """An attached job: its keeper, and what takes the hooks away again (called once, before the keeper is closed)."""

    keeper: TurnKeeper
    undo: Callable[[], None]


class Integration(Protocol):
    """What a module of this folder provides. `models` has one model or more, `optimizers` none or more."""

    def claims(self, models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> bool:
        """Whether these objects are of this framework. Imports nothing that the script has not imported."""

    def team(self, models: tuple[Any, ...], optimizers: tuple[Any, ...]) -> Team:
        """The job's workers. Raises `Refused` for what cannot be shared in turns, with the reason and the remedy."""

    def bind(self, models: tuple[Any, ...], optimizers: tuple[Any, ...], turns: TurnTaking, manner: Manner) -> Bond:
        """Make the objects take turns from now on."""
