"""What is asked of a run: plain frozen values, JSON both ways through `results.codec`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import crossover
from baselines.api import NeedsWorld, SharesMemory, UpdatePoint
from baselines.strategy import Strategy, parse_strategy, why_not_pushed
from crossover import ReleasePoint, Sharing
from fabric.api import FabricKind, FabricSpec, NetworkSpec
from fabric.simulated.packet_traffic import PacketTraffic
from harness.asynchrony.cluster import OnLoss, VirtualCluster
from harness.parallel.placement import Pipelining
from harness.precision import Precision
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
    """One training job, with a rank on every host. `strategy` is for the system `ours` only.

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
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise TrialError(f"job {self.name}: clip_norm is {self.clip_norm}; give a positive norm, or leave it out")
        if self.precision not in set(Precision):
            raise TrialError(f"job {self.name}: precision is {self.precision!r}; use one of {', '.join(Precision)}")
        object.__setattr__(self, "precision", Precision(self.precision))  # where a plain text was given
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
        return parse_strategy(f"{self.strategy}+{self.optimizer}")

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
    together. A trial of `traffic` has no jobs: flows of the network's transport go through the packet engine
    (`harness.simulated.packets`); nor has one of a `collective`, which ranks of its library time
    (`harness.collectives`).
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
    traffic: PacketTraffic | None = None
    collective: TimedCollective | None = None
    finds_phases: bool = False

    def __post_init__(self) -> None:
        if bool(self.jobs) + (self.traffic is not None) + (self.collective is not None) != 1:
            raise TrialError(
                f"{self.cell}: {len(self.jobs) or 'no'} jobs; a trial has one or more, or traffic, or a collective"
            )
        if self.traffic is not None and self.fabric.kind is not FabricKind.SIMULATED:
            raise TrialError(f"{self.cell}: traffic on the {self.fabric.kind} fabric; packets are simulated, use that")
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


def check(trial: Trial) -> None:
    """Everything about a trial that can be known before it starts, memory apart.

    Raises: TrialError, TextError, CatalogueError, WorkloadError, NetworkError with value and remedy.
    """
    if trial.traffic is not None:
        _check_traffic(trial)
        return
    if trial.collective is not None:
        _check_collective(trial, trial.collective)
        return
    _check_placement(trial)
    if trial.is_split:
        from harness.splits.split_checks import check_splits

        check_splits(trial)
    elif trial.is_pipelined:
        from harness.parallel.trial_checks import check_pipelines

        check_pipelines(trial)
    else:
        _check_jobs(trial)


def _check_jobs(trial: Trial) -> None:
    """Jobs that train by data parallelism, on any fabric."""
    from harness.parallel.sessions import RunsPipelines
    from harness.systems import system_of  # the systems need the values above
    from harness.systems.api import HasPrecisions, Warms

    if trial.sharing is Sharing.MPS:
        raise TrialError(
            f"{trial.cell}: mps is a service of the GPU's driver, which no trial starts; use `crossover run`"
        )
    if trial.fabric.kind is FabricKind.LOCKSTEP:
        _check_lockstep(trial)
    if trial.fabric.network is not None:
        _check_network(trial, trial.fabric.network)
    for job in trial.jobs:
        system = system_of(job.system)
        if isinstance(system, RunsPipelines):
            raise TrialError(f"{trial.cell}: {job.system} trains pipelines alone; give job {job.name} pipelining")
        if isinstance(system, Warms) and system.num_warmup > trial.num_warmup:
            raise TrialError(
                f"{trial.cell}: {job.system} needs {system.num_warmup} steps before it is what it will be, and "
                f"num_warmup is {trial.num_warmup}; warm up longer or let it search less"
            )
        precisions = system.precisions if isinstance(system, HasPrecisions) else frozenset({Precision.FLOAT32})
        if job.precision not in precisions:
            known = ", ".join(sorted(precisions))
            raise TrialError(f"{trial.cell}: {job.system} does not train in {job.precision} here; use {known}")
        if job.system == "ours":
            if job.precision.scales_loss:
                _check_skipping(trial, job)
            _check_update_point(trial, job)
            _check_exchange(trial, job)
            _check_consistency(trial, job)
        else:
            # Other systems have no strategy, but the optimizer is a plug-in of ours.
            parse_strategy(job.optimizer)


LIBRARIES = {FabricKind.EMULATED: ("gloo", "mpi", "horovod"), FabricKind.NATIVE: ("nccl",)}


def _check_collective(trial: Trial, asked: TimedCollective) -> None:
    """Whether the library's ranks can be started there."""
    if trial.fabric.kind not in LIBRARIES:
        raise TrialError(
            f"{trial.cell}: {asked.text} on the fabric {trial.fabric.kind}, which has no wire to be timed; use "
            "emulated, or native for nccl"
        )
    if asked.library not in LIBRARIES[trial.fabric.kind]:
        known = ", ".join(LIBRARIES[trial.fabric.kind])
        raise TrialError(f"{trial.cell}: library {asked.library!r} on the fabric {trial.fabric.kind}; use {known}")
    if trial.fabric.num_hosts < 2:
        raise TrialError(f"{trial.cell}: a collective among {trial.fabric.num_hosts} hosts; use 2 or more")
    if not 0 < asked.most_s < math.inf:  # NaN too
        raise TrialError(f"{trial.cell}: rows of at most {asked.most_s:g} s; give seconds above 0, e.g. 15")


def _check_skipping(trial: Trial, job: Job) -> None:
    """A step is skipped as a whole, so nothing of it may be applied before all of it is known."""
    strategy = job.resolve()
    asked = f"{trial.cell}: precision={job.precision} skips a step in which any gradient overflows, and"
    if strategy.update_point is UpdatePoint.AT_PRE_HOOK:
        raise TrialError(
            f"{asked} at-pre-hook updates a layer before the others' have arrived; update after-all, or use bfloat16"
        )
    if strategy.updates_on_servers:
        raise TrialError(f"{asked} each server updates its part at once; use update='worker', or bfloat16")


def _check_exchange(trial: Trial, job: Job) -> None:
    strategy = job.resolve()
    if isinstance(strategy.exchange, NeedsWorld) and (reason := strategy.exchange.why_unfit(trial.num_ranks)):
        raise TrialError(f"{trial.cell}: {job.strategy}: {reason}")
    if strategy.num_workers(trial.world) < trial.world and trial.sharing is not None:
        raise TrialError(
            f"{trial.cell}: {job.strategy} has ranks that only serve, which take no turns under {trial.sharing}; use "
            "servers=0, or run the job alone"
        )
    if strategy.updates_on_servers and job.clip_norm is not None:
        raise TrialError(
            f"{trial.cell}: clip_norm={job.clip_norm:g} needs the norm of all gradients, and each server has a part of "
            "them; use update='worker', or do not clip"
        )


def _check_consistency(trial: Trial, job: Job) -> None:
    """Workers that do not wait push to servers, which a trial has only with a cluster."""
    strategy, cluster = job.resolve(), trial.cluster
    if not strategy.consistency.is_synchronous and cluster is None:
        raise TrialError(
            f"{trial.cell}: {job.strategy} lets workers go on without each other; give the trial a cluster, or use bsp"
        )
    if cluster is None:
        return
    if isinstance(strategy.consistency, SharesMemory) and trial.world > 1:
        raise TrialError(
            f"{trial.cell}: {strategy.consistency.card.name} shares the memory of one host, and the trial has "
            f"{trial.world}; use asp, or harness.asynchrony.shared_memory"
        )
    on_hosts = trial.fabric.kind.has_processes
    if cluster.num_workers + (cluster.num_servers if on_hosts else 0) != trial.world:
        servers = f" and {cluster.num_servers} servers" if on_hosts else ""
        raise TrialError(
            f"{trial.cell}: a cluster of {cluster.num_workers} workers{servers} on {trial.world} ranks of the fabric "
            f"{trial.fabric.kind}; use a host for each"
        )
    if job.accumulate > 1 or job.precision is not Precision.FLOAT32:
        raise TrialError(
            f"{trial.cell}: workers that push to servers neither accumulate nor train in {job.precision}; leave that "
            "out"
        )
    if reason := why_not_pushed(strategy):
        raise TrialError(f"{trial.cell}: {job.strategy}: {reason}")
    if trial.sharing is not None:
        _check_turns(trial, trial.sharing)
    if on_hosts:
        _check_processes(trial, job)


def _check_turns(trial: Trial, sharing: Sharing) -> None:
    """Workers take a turn per step, on the device alone."""
    if sharing not in (Sharing.CROSSOVER, Sharing.EXCLUSIVE):
        raise TrialError(
            f"{trial.cell}: jobs that push to servers share by crossover or exclusive, not by {sharing}: their turn is "
            "a step's computation, whatever travels meanwhile"
        )
    if sharing.gates_link and trial.link is Link.FIFO:
        raise TrialError(
            f"{trial.cell}: link=fifo under {sharing}: a pull waits for other workers, and a link turn held meanwhile "
            "could stop the worker that it waits for; use link=fair"
        )


def _check_processes(trial: Trial, job: Job) -> None:
    """What the virtual clock models and processes do not do."""
    strategy, cluster = job.resolve(), trial.cluster
    assert cluster is not None
    refusals = (
        (job.system != "ours", "run under ours"),
        (job.workload.device is not Device.CPU, f"compute on the cpu, not on {job.workload.device}"),
        (trial.fabric.num_virtual > 0, "are all real; use num_virtual=0"),
        (
            trial.fabric.kind is not FabricKind.PACED and any(slow > 1 for slow in cluster.disturbances.slow_links),
            "share equal links here",
        ),
        (strategy.compression.lossy, "push uncompressed updates here; compress on the virtual clock"),
    )
    if reason := next((reason for applies, reason in refusals if applies), None):
        raise TrialError(f"{trial.cell}: workers as processes on the fabric {trial.fabric.kind} {reason}")
    if trial.on_loss is OnLoss.CONTINUE and strategy.consistency.is_synchronous:
        raise TrialError(
            f"{trial.cell}: on_loss=continue under {strategy.consistency.card.name}, whose steps need every worker; "
            "use asp or ssp, or on_loss=stop"
        )


def _check_lockstep(trial: Trial) -> None:
    """One process, no time: what is about either is asked of another fabric."""
    jobs = trial.jobs
    reasons = (
        (trial.sharing is not None and trial.cluster is None, f"jobs cannot share by {trial.sharing}"),
        *((job.system != "ours", f"{job.system} is processes of its own") for job in jobs),
        (any(job.workload.device is Device.REPLAY for job in jobs), "a replayed workload learns nothing"),
        (any(job.clip_norm is not None for job in jobs), "gradients are not clipped"),
        (trial.num_cost_steps > 0, "there are no costs to measure"),
        (trial.trace, "there are no moments to trace"),
        (trial.ranks_per_host > 1, f"every rank is a host's only one, not one of {trial.ranks_per_host}"),
    )
    if reason := next((reason for applies, reason in reasons if applies), None):
        raise TrialError(f"{trial.cell}: in lockstep {reason}; run it on the emulated or native fabric")


def _check_network(trial: Trial, network: NetworkSpec) -> None:
    """Whether the network can be built, has room for all jobs and joins their hosts. Raises: NetworkError."""
    from fabric.simulated.placed import place_network  # numba comes with it

    if trial.cluster is not None:
        raise TrialError(f"{trial.cell}: unequal workers train in lockstep, not on a simulated network; leave it out")
    place_network(network, trial.world, len(trial.jobs))


def _check_traffic(trial: Trial) -> None:
    """Whether all its flows can be. Raises: NetworkError."""
    from fabric.simulated.packet_flows import check_traffic  # numba comes with it

    assert trial.traffic is not None
    assert trial.fabric.network is not None
    check_traffic(trial.traffic, trial.fabric.network, trial.seed)


def _check_placement(trial: Trial) -> None:
    if trial.finds_phases and not (trial.is_pipelined and trial.sharing is Sharing.CROSSOVER):
        raise TrialError(
            f"{trial.cell}: finds_phases is for pipelined jobs under crossover; give start_phase, or share by cassini"
        )
    if trial.ranks_per_host == 1:
        return
    if trial.sharing is not None:
        raise TrialError(
            f"{trial.cell}: ranks_per_host={trial.ranks_per_host} under {trial.sharing}: a host's arbiter seats one "
            "rank of a job; use ranks_per_host=1"
        )
    if trial.fabric.kind is FabricKind.PACED:
        raise TrialError(
            f"{trial.cell}: ranks_per_host={trial.ranks_per_host} on the paced fabric, whose model has one rank a "
            "host; use ranks_per_host=1, or another fabric"
        )


def _check_update_point(trial: Trial, job: Job) -> None:
    if job.resolve().update_point is not UpdatePoint.AT_PRE_HOOK:
        return
    if trial.sharing is not None and not trial.sharing.waits_in_turn:
        raise TrialError(
            f"{trial.cell}: at-pre-hook waits for messages inside the turn, which {trial.sharing} must "
            "not; update after-all"
        )
    if job.clip_norm is not None:
        raise TrialError(
            f"{trial.cell}: clip_norm={job.clip_norm:g} needs the norm of all gradients, and at-pre-hook updates a "
            "layer before the others' have arrived; update after-all, or do not clip"
        )
