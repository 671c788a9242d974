"""How `crossover.attach` speaks to each framework. An integration is a module with the functions of `Integration`.

    plain      any torch model and optimizer          computing.py   forward and backward begin and end turns
    ddp        torch DistributedDataParallel          updating.py    step() and zero_grad() are put off to the next turn
    horovod    hvd.DistributedOptimizer               overriding.py  methods of single objects replaced for a time
    deepspeed  DeepSpeedEngine                        workers.py     devices, workers and how they agree

Frameworks are imported inside the modules that need them, which are themselves imported when something is attached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from crossover.client import TurnTaking
from crossover.keeper import TurnKeeper


class Release(StrEnum):
    """When a turn's release may come: when the device has done its work (an event that is complete), or when the
    work has only been launched. The same on a CPU."""

    EVENT = "event"
    LAUNCH = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a job takes its turns. Without `defer`, an update is a lease of its own, at once."""

    release: Release = Release.EVENT
    defer: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A job's workers as one of them sees them.

    `agree` turns the round at which each worker could enter into one at which all can (a collective: all workers
    attach). `device` names this worker's device among those of its host, the same for every job. `strict` says why
    turns must be strict here; empty: they need not.
    """

    agree: Callable[[int], int]
    device: str
    strict: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bond:
    """An attached job: its keeper, and what takes the hooks away again (called once, before the keeper is closed)."""

    keeper: TurnKeeper
    undo: Callable[[], None]


class Integration(Protocol):
    """What a module of this folder provides."""

    def claims(self, model: Any, optimizer: Any) -> bool:
        """Whether these objects are of this framework. Imports nothing that the script has not imported."""

    def team(self, model: Any, optimizer: Any) -> Team:
        """The job's workers. Raises `Refused` for what cannot be shared in turns, with the reason and the remedy."""

    def bind(self, model: Any, optimizer: Any, turns: TurnTaking, manner: Manner) -> Bond:
        """Make the objects take turns from now on."""
