"""What is asked of a run: plain frozen values, JSON both ways through `results.codec`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from baselines.api import UpdatePoint
from baselines.strategy import Strategy, parse_strategy
from fabric.api import FabricSpec
from models.workload import WorkloadSpec


class TrialError(ValueError):
    """A trial that cannot be run as asked; the message names the value and the remedy."""


class Sharing(StrEnum):
    """Who has the device when several jobs are on it."""

    NONE = "none"
    EXCLUSIVE = "exclusive"
    HOLD = "hold"
    NAIVE = "naive"
    CROSSOVER = "crossover"


class Link(StrEnum):
    """How jobs in turns share the link: first in, first out by job, or as TCP divides it."""

    FIFO = "fifo"
    FAIR = "fair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training job, with a rank on every host. `strategy` is for the system `ours` only."""

    name: str
    workload: WorkloadSpec
    system: str = "ours"
    strategy: str = "fixed-buckets"
    optimizer: str = "sgd"

    def resolve(self) -> Strategy:
        """The strategy with this job's optimizer. Raises: TextError, CatalogueError."""
        return parse_strategy(f"{self.strategy}+{self.optimizer}")

    @property
    def label(self) -> str:
        return self.strategy if self.system == "ours" else self.system


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: `jobs` over `fabric`, a rank of each job a host, `num_warmup + num_steps` steps.

    `cell` names the question; repeats of a cell differ in `repeat` alone. With `costs`, each job
    is measured alone after its steps: compute without communication and communication without
    compute, `num_cost_steps` times each. `link` matters under crossover alone.
    """

    suite: str
    cell: str
    jobs: tuple[Job, ...]
    fabric: FabricSpec
    sharing: Sharing = Sharing.NONE
    link: Link = Link.FIFO
    num_steps: int = 20
    num_warmup: int = 3
    evaluate_every: int = 0
    num_cost_steps: int = 0
    seed: int = 1
    repeat: int = 0
    timeout_s: float = 120.0
    trace: bool = False

    def __post_init__(self) -> None:
        if not self.jobs:
            raise TrialError(f"{self.cell}: no jobs; a trial needs at least one")
        if self.num_steps < 1 or self.num_warmup < 1:
            raise TrialError(
                f"{self.cell}: num_steps is {self.num_steps} and num_warmup {self.num_warmup}; both must be at least 1"
            )
        if (len(self.jobs) > 1) != (self.sharing is not Sharing.NONE):
            raise TrialError(f"{self.cell}: {len(self.jobs)} job(s) with sharing={self.sharing}; two or more share")
        names = [job.name for job in self.jobs]
        if len(set(names)) != len(names):
            raise TrialError(f"{self.cell}: two jobs are called alike in {names}; give each its own name")

    @property
    def world(self) -> int:
        return self.fabric.num_hosts

    @property
    def id(self) -> str:
        """File name of the record."""
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.cell)
        return f"{self.suite}.{safe}.r{self.repeat:02d}"


def check(trial: Trial) -> None:
    """Everything about a trial that can be known before it starts, memory apart.

    Raises: TrialError, TextError, CatalogueError, WorkloadError with value and remedy.
    """
    from harness.systems import system_of  # the systems need the values above

    for job in trial.jobs:
        system = system_of(job.system)
        if job.system == "ours":
            strategy = job.resolve()
            in_turns = trial.sharing in (Sharing.CROSSOVER, Sharing.HOLD)
            if in_turns and strategy.update_point is UpdatePoint.AT_PRE_HOOK:
                raise TrialError(
                    f"{trial.cell}: at-pre-hook waits for messages inside the turn, which {trial.sharing} must "
                    "not; update after-all"
                )
        else:
            parse_strategy(job.optimizer)
        assert system is not None
