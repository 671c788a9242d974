"""What is asked of a run: plain frozen values, JSON both ways through `results.codec`."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

import crossover
from baselines.parallelism.plans import Machine
from baselines.strategy import Strategy, optimizer_of, parse_strategy, with_optimizer
from crossover import ReleasePoint, Sharing
from fabric.api import FabricKind, FabricSpec
from fabric.simulated.flow_traffic import FluidTraffic, PacketTraffic
from harness.asynchrony.cluster import OnLoss, VirtualCluster
from harness.parallel.placement import Pipelining
from harness.precision import Precision
from harness.problems.asked import Problem
from harness.splits.splitting import Splitting
from models.workload import Device, WorkloadSpec
from results.collectives import Operation
from results.facts import Role


class TrialError(ValueError):
    """A trial that cannot be run as asked; the message names the value and the remedy."""


class Link(StrEnum):
    """How jobs in turns share the link: first in, first out by job, or as TCP divides it."""

    FIFO = "fifo"
    FAIR = "fair"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training job, with a rank on every host. `strategy` is for the system `ours` only; an optimizer that it names
    takes the place of `optimizer`.

    `num_steps` differs from the trial's where jobs are of unequal length. `start_phase` lets the first step wait by
    this part of the job's step alone, and becomes `start_delay_s` when that is known. A step is `accumulate`
    micro-batches of the workload's batch size; before the update the L2 norm of the averaged gradient of all parameters
    is clipped to `clip_norm`, if that is given. Layers compute in `precision`, parameters and gradients stay float32
    (`harness/precision.py`). `role` is what the job is for among those that it is compared with. With `pipelining` the
    ranks are the stages of one replica of the network rather than replicas, and a step's micro-batches go through them;
    with `splitting` each rank has a part of every layer, and the batch is that of all ranks together.
    """

    name: str
    workload: WorkloadSpec
    system: str = "ours"
    strategy: str = "fixed-buckets"
    optimizer: str = "sgd"
    num_steps: int | None = None
    start_phase: float = 0.0
    start_delay_s: float = 0.0
    accumulate: int = 1
    clip_norm: float | None = None
    precision: Precision = Precision.FLOAT32
    role: Role = Role.METHOD
    pipelining: Pipelining | None = None
    splitting: Splitting | None = None

    def __post_init__(self) -> None:
        if self.accumulate < 1:
            raise TrialError(f"job {self.name}: accumulate is {self.accumulate}; a step has at least 1 micro-batch")
        if self.num_steps is not None and self.num_steps < 1:
            raise TrialError(f"job {self.name}: num_steps is {self.num_steps}; give at least 1, or leave it out")
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise TrialError(f"job {self.name}: clip_norm is {self.clip_norm}; give a positive norm, or leave it out")
        if self.precision not in set(Precision):
            raise TrialError(f"job {self.name}: precision is {self.precision!r}; use one of {', '.join(Precision)}")
        object.__setattr__(self, "precision", Precision(self.precision))  # where a plain text was given
        if self.system == "ours":
            with suppress(ValueError):  # a text that cannot be read is refused by `resolve`
                object.__setattr__(self, "optimizer", optimizer_of(self.strategy, self.optimizer))
        if self.precision is not Precision.FLOAT32:
            self._check_16_bits()

    def _check_16_bits(self) -> None:
        if self.workload.device is Device.REPLAY:
            raise TrialError(
                f"job {self.name}: precision={self.precision} in replay, whose times are those of its profile; use "
                "float32, or a profile recorded in that precision"
            )

    def resolve(self) -> Strategy:
        """The strategy with this job's optimizer. Raises: TextError, CatalogueError."""
        return parse_strategy(with_optimizer(self.strategy, self.optimizer))

    def num_workers(self, world: int) -> int:
        """How many of `world` ranks train; the others only serve."""
        return self.resolve().num_workers(world) if self.system == "ours" else world

    @property
    def label(self) -> str:
        label = self.strategy if self.system == "ours" else self.system
        if self.pipelining is not None:
            label = self.pipelining.schedule if self.system == "ours" else f"{self.system}, {self.pipelining.schedule}"
        if self.splitting is not None:
            label = self.splitting.planner
        return label if self.precision is Precision.FLOAT32 else f"{label} in {self.precision}"


LIBRARIES = {FabricKind.EMULATED: ("gloo", "mpi", "horovod"), FabricKind.NATIVE: ("nccl",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCollective:
    """An operation of a library to be timed by itself, every size whose rows fit into `most_s` seconds."""

    library: str
    operation: Operation
    most_s: float = 15.0

    @property
    def text(self) -> str:
        """`mpi all-reduce`."""
        return f"{self.library} {self.operation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run: `jobs` over `fabric`, `ranks_per_host` ranks of each job a host, `num_warmup + num_steps` steps.

    `cell` names the question; repeats of a cell differ in `repeat` alone. `axis` and `at` place it on a sweep. With
    `num_cost_steps`, each job is measured alone after its steps: compute without communication, communication without
    compute, and compute beside other communication, so many times each. `link` matters where link turns are taken.
    The `shares` of weighted, the `groups` of muri and the `beats` of cassini come from these costs unless given. With a
    `cluster`, unequal workers push to servers (`harness.asynchrony`): on the fabric lockstep on a virtual clock, on
    others as processes, where `on_loss` says what becomes of the rest when a worker's ends. All jobs of such a trial
    have their workers on the same hosts and their servers on the last ones; `bsp` is the synchronous one. With
    `finds_phases` each pipelined job's `start_phase` is the one at which the virtual clock finds that they take least
    together. A trial of `traffic` has no jobs: flows go through a simulated network as packets or as fluids
    (`harness.simulated.flows`); nor has one of a `collective`, which ranks of its library time
    (`harness.collectives`), or of a `problem` of a paper's own (`harness.problems.solving`).
    """

    suite: str
    cell: str
    jobs: tuple[Job, ...]
    fabric: FabricSpec
    sharing: Sharing | None = None
    link: Link = Link.FIFO
    release: ReleasePoint = ReleasePoint.EVENT
    axis: str = ""
    at: float | None = None
    shares: tuple[int, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    beats: tuple[crossover.Beat, ...] = ()
    num_steps: int = 20
    num_warmup: int = 3
    evaluate_every: int = 0
    num_cost_steps: int = 0
    seed: int = 1
    repeat: int = 0
    timeout_s: float = 120.0
    trace: bool = False
    ranks_per_host: int = 1
    cluster: VirtualCluster | None = None
    on_loss: OnLoss = OnLoss.STOP
    traffic: PacketTraffic | FluidTraffic | None = None
    collective: TimedCollective | None = None
    problem: Problem | None = None
    finds_phases: bool = False

    def __post_init__(self) -> None:
        if bool(self.jobs) + sum(one is not None for one in (self.traffic, self.collective, self.problem)) != 1:
            raise TrialError(
                f"{self.cell}: {len(self.jobs) or 'no'} jobs; a trial has one or more, or traffic, or a collective, or "
                "a problem"
            )
        if self.traffic is not None and self.fabric.kind is not FabricKind.SIMULATED:
            raise TrialError(f"{self.cell}: traffic on the {self.fabric.kind} fabric; flows are simulated, use that")
        if self.num_steps < 1 or self.num_warmup < 1:
            raise TrialError(
                f"{self.cell}: num_steps is {self.num_steps} and num_warmup {self.num_warmup}; both must be at least 1"
            )
        if (len(self.jobs) > 1) != (self.sharing is not None):
            raise TrialError(f"{self.cell}: {len(self.jobs)} job(s) with sharing={self.sharing}; two or more share")
        if self.ranks_per_host < 1:
            raise TrialError(f"{self.cell}: ranks_per_host is {self.ranks_per_host}; use at least 1")
        names = [job.name for job in self.jobs]
        if len(set(names)) != len(names):
            raise TrialError(f"{self.cell}: two jobs are called alike in {names}; give each its own name")

    def num_steps_of(self, job: int) -> int:
        """Measured steps of one job."""
        return self.jobs[job].num_steps or self.num_steps

    @property
    def world(self) -> int:
        """Ranks of a job, those that only serve included; rank r is on host r div `ranks_per_host`."""
        return self.fabric.num_hosts * self.ranks_per_host

    @property
    def num_ranks(self) -> int:
        """Ranks of a job as its collectives count them: beside those of `world`, virtual peers too."""
        return self.fabric.num_ranks * self.ranks_per_host

    @property
    def num_processes(self) -> int:
        """Processes of a job: a rank each, or in lockstep one for all ranks."""
        return self.world if self.fabric.kind.has_processes else 1

    def num_workers_of(self, job: int) -> int:
        """Ranks of one job that train: the first ones."""
        return self.jobs[job].num_workers(self.world)

    def machine_of(self, job: Job) -> Machine:
        """The hosts as planners and clocks see them. In replay tensors are scaled, so a byte of the real network takes
        as many times less."""
        rate_bps = self.fabric.rate_bps
        # Stages' costs count the real network's bytes, of which the link carries a scaled part.
        beta = 8 / rate_bps / job.workload.size_scale if rate_bps else 0.0
        return Machine(num_devices=self.num_ranks, alpha_s=self.fabric.alpha_s, beta_s_per_byte=beta)

    @property
    def is_pipelined(self) -> bool:
        """Whether its jobs are pipelines: all of them, or none (`check`)."""
        return any(job.pipelining is not None for job in self.jobs)

    @property
    def is_split(self) -> bool:
        """Whether a job's operators are split over its ranks."""
        return any(job.splitting is not None for job in self.jobs)

    @property
    def is_partitioned(self) -> bool:
        """Whether a rank has a part of a network, stages or splits, rather than a replica."""
        return self.is_pipelined or self.is_split

    @property
    def is_timed(self) -> bool:
        """Whether step times are those of this trial, measured or on a virtual clock."""
        return self.fabric.kind.has_clock or self.cluster is not None or self.is_partitioned

    @property
    def id(self) -> str:
        """File name of the record."""
        # File systems differ in what they take for a name, and a cell's has slashes.
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in self.cell)
        return f"{self.suite}.{safe}.r{self.repeat:02d}"
