"""The suite `crossover`: jobs in turns against their bound, their rivals and themselves alone.

Every group asks one question of a sceptical reviewer (README.md beside this file). Within a group the exclusive trial
comes first: it is the denominator, and the costs c, m, t that it measures predict the others. Groups on which a claim
rests have five repeats, the others and the rivals fewer; `--repeats` sets one number for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from crossover import Sharing
from harness.trial import Job, Link, Trial
from models.workload import Device, WorkloadSpec
from suites.api import Options, Suite
from suites.recipes import BERT_TINY, RATE_BPS, RESNET20_LARGE, trial

AFTER_BACKWARD = "single-bucket"
DURING_BACKWARD = "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)"
# On eight hosts each message costs fourteen ring steps of two cores: larger buckets are the tuned ones there, and steps
# are twice as long (twice the batch, half the size scale), so that the processors' part in them is half as large.
FEW_MESSAGES = "fixed-buckets(bucket_bytes=1048576, first_bucket_bytes=262144)"
PHASES = (0.0, 0.2, 0.4, 0.6, 0.8)
RHOS = (0.25, 0.5, 1.0, 2.0, 4.0)
MANY, FEW = 5, 3
# ResNet-50's computation is 2.73 ms an image; on 4 hosts at 200 Mbit/s its messages take 6.455 s over the size scale.
COMPUTE_S, MESSAGES_S = 2.725e-3, 6.455

Jobs = tuple[Job, ...]
Ways = tuple[tuple[Sharing, Link], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trials of the same jobs on the same fabric: exclusive first, then each way to share."""

    name: str
    jobs: Jobs
    ways: Ways
    num_hosts: int = 4
    rate_bps: float | None = RATE_BPS
    repeats: int = MANY
    axis: str = ""
    at: float | None = None
    num_steps: int = 8
    num_cost_steps: int = 5
    rivals: Ways = ()
    phases: Sequence[float] = ()
    repeats_of_rivals: int = FEW

    def trials(self, options: Options, repeat: int = 0) -> Iterator[Trial]:
        """One repeat, in the order in which it runs; empty beyond the last."""
        if repeat >= (options.repeats or self.repeats):
            return
        fabric = options.fabric_spec(num_hosts=self.num_hosts, rate_bps=self.rate_bps)
        name = self.name if self.at is None else f"{self.name}-{self.at:g}"
        base = trial(
            "crossover",
            name,
            self.jobs,
            fabric,
            options,
            num_steps=self.num_steps,
            num_warmup=2,
            sharing=Sharing.EXCLUSIVE,
            num_cost_steps=self.num_cost_steps,
            axis=self.axis,
            at=self.at,
        )
        yield base
        for sharing, link in self.ways:
            yield _shared(base, sharing, link)
        if repeat < (options.repeats or self.repeats_of_rivals):
            for sharing, link in self.rivals:
                yield _shared(base, sharing, link)
            for phase in self.phases:
                yield _naive_from(base, phase)


def _shared(base: Trial, sharing: Sharing, link: Link = Link.FIFO) -> Trial:
    label = sharing.value if link is Link.FIFO else f"{sharing.value}-{link.value}-link"
    return replace(base, sharing=sharing, link=link, cell=_cell(base, label), num_cost_steps=0)


def _naive_from(base: Trial, phase: float) -> Trial:
    """Naive co-location whose last job starts `phase` of a step late."""
    jobs = (*base.jobs[:-1], replace(base.jobs[-1], start_phase=phase))
    cell = _cell(base, f"naive-from-{phase:g}")
    return replace(base, sharing=Sharing.NAIVE, jobs=jobs, cell=cell, num_cost_steps=0, axis="phase", at=phase)


def _cell(base: Trial, label: str) -> str:
    return f"{base.cell.rpartition('/')[0]}/{label}"


def replayed(network: str, batch_size: int, size_scale: int, strategy: str = DURING_BACKWARD) -> Callable[[str], Job]:
    """A job on the virtual device, by name."""
    workload = WorkloadSpec(network=network, device=Device.REPLAY, batch_size=batch_size, size_scale=size_scale)
    return lambda name: Job(name=name, workload=workload, strategy=strategy, optimizer="sgd(lr=0.1)")


def named(*jobs: Callable[[str], Job]) -> Jobs:
    """The jobs as a, b, c, …, in turn order."""
    return tuple(job(name) for job, name in zip(jobs, "abcdefgh", strict=False))


def at_rho(rho: float, strategy: str) -> Callable[[str], Job]:
    """ResNet-50 whose communication takes `rho` times its computation, on 4 hosts; the longer of the two about 90 ms or
    more, so that a hand-over is small beside it."""
    batch_size = 32 if rho <= 1 else 16
    return replayed("resnet50", batch_size, round(MESSAGES_S / (rho * COMPUTE_S * batch_size)), strategy)


FIFO, FAIR = (Sharing.CROSSOVER, Link.FIFO), (Sharing.CROSSOVER, Link.FAIR)
HOLD, NAIVE = (Sharing.HOLD, Link.FIFO), (Sharing.NAIVE, Link.FIFO)
RIVALS = tuple((sharing, Link.FIFO) for sharing in (Sharing.TICK_TOCK, Sharing.CASSINI, Sharing.MURI, Sharing.WEIGHTED))


def rho_sweeps() -> Iterator[Group]:
    """Identical jobs from compute-bound to communication-bound, without and with overlap inside a job."""
    for rho in RHOS:
        jobs = named(*[at_rho(rho, AFTER_BACKWARD)] * 2)
        ways: Ways = (FIFO, HOLD, NAIVE) if rho == 1 else (FIFO,)
        yield Group(name="rho-no-overlap", jobs=jobs, ways=ways, axis="ρ", at=rho)
    for rho in RHOS:
        jobs = named(*[at_rho(rho, DURING_BACKWARD)] * 2)
        ways = (FIFO, FAIR, HOLD, NAIVE) if rho == 1 else (FIFO, FAIR)
        yield Group(name="rho-overlap", jobs=jobs, ways=ways, axis="ρ", at=rho)


COMPUTE_BOUND = replayed("resnet50", 64, 200)
VGG_BOUND = replayed("vgg16", 8, 200)
BERT_BOUND = replayed("bert_base", 4, 200)


def heterogeneous() -> Iterator[Group]:
    """A compute-bound job with a communication-bound one, against every rival."""
    vgg, bert = named(COMPUTE_BOUND, VGG_BOUND), named(replayed("resnet50", 48, 200), BERT_BOUND)
    yield Group(name="heterogeneous", jobs=vgg, ways=(FIFO, FAIR, HOLD), rivals=RIVALS, phases=PHASES)
    yield Group(name="heterogeneous", jobs=bert, ways=(FIFO, FAIR, HOLD, NAIVE))
    for jobs in (vgg, bert):
        larger = tuple(_twice_as_long(job) for job in jobs)
        yield Group(name="heterogeneous-8", jobs=larger, ways=(FIFO, FAIR, NAIVE), num_hosts=8)


def _twice_as_long(job: Job) -> Job:
    workload = replace(job.workload, batch_size=2 * job.workload.batch_size, size_scale=job.workload.size_scale // 2)
    return replace(job, workload=workload, strategy=FEW_MESSAGES)


def more_jobs() -> Iterator[Group]:
    """Three and four jobs: identical ones need no more than two, mixed ones may."""
    barrier = (Sharing.SLOT_BARRIER, Link.FIFO)
    for k in (2, 3, 4):
        jobs = named(*[at_rho(1.0, AFTER_BACKWARD)] * k)
        yield Group(name="jobs", jobs=jobs, ways=(FIFO, barrier), axis="jobs", at=k, repeats=FEW)
    mixed = named(COMPUTE_BOUND, VGG_BOUND, replayed("resnet50", 16, 200))
    yield Group(name="mixed", jobs=mixed, ways=(FIFO, barrier, (Sharing.MURI, Link.FIFO)), repeats=FEW)


def more_workers() -> Iterator[Group]:
    """Two to eight workers; four are in the sweep of ρ."""
    for num_hosts, strategy in ((2, DURING_BACKWARD), (8, FEW_MESSAGES)):
        jobs = named(*[at_rho(1.0, strategy)] * 2)
        if num_hosts == 8:
            jobs = tuple(_twice_as_long(job) for job in jobs)
        yield Group(name="hosts", jobs=jobs, ways=(FIFO, FAIR), num_hosts=num_hosts, axis="hosts", at=num_hosts)


def unsteady() -> Iterator[Group]:
    """Jitter of every worker's computation, and one worker slower than the others."""
    steady = at_rho(1.0, AFTER_BACKWARD)("").workload
    for jitter in (0.1, 0.3):
        jobs = _alike(replace(steady, jitter=jitter))
        yield Group(name="jitter", jobs=jobs, ways=(FIFO,), axis="jitter", at=jitter, repeats=FEW, num_steps=12)
    for slow in (1.25, 1.5):
        jobs = _alike(replace(steady, slow_worker=slow))
        yield Group(name="slow-worker", jobs=jobs, ways=(FIFO,), axis="slow worker", at=slow, repeats=FEW, num_steps=12)


def _alike(workload: WorkloadSpec) -> Jobs:
    return tuple(Job(name=name, workload=workload, strategy=AFTER_BACKWARD, optimizer="sgd(lr=0.1)") for name in "ab")


def unequal_lengths() -> Iterator[Group]:
    """One job makes twice as many steps; the rest of its time it is alone."""
    a, b = named(COMPUTE_BOUND, VGG_BOUND)
    yield Group(name="unequal-lengths", jobs=(a, replace(b, num_steps=16)), ways=(FIFO, NAIVE), repeats=FEW)


def on_top() -> Iterator[Group]:
    """Fusion and compression alone and with turns: the less is exposed, the less there is to gain."""
    strategies = {
        "fusion": "tensor-fusion(cycle_s=0.005)",
        "half": f"{DURING_BACKWARD}+half",
        "topk": "single-bucket+topk(density=0.01)",
    }
    for name, strategy in strategies.items():
        jobs = named(*[at_rho(1.0, strategy)] * 2)
        yield Group(name=f"on-top-{name}", jobs=jobs, ways=(FIFO,), repeats=FEW)


def papers_case() -> Iterator[Group]:
    """ImageNet classification at several rates; a rate is what the scaled link stands for, in Gbit/s."""
    cases = (
        (4, "resnet50", 32, (50, 125)),
        (4, "vgg16", 16, (125, 500)),
        (8, "resnet50", 32, (50,)),
        (8, "vgg16", 16, (500,)),
    )
    for num_hosts, network, batch_size, scales in cases:
        for scale in scales:
            jobs = named(*[replayed(network, batch_size, scale)] * 2)
            gbit = scale * RATE_BPS / 1e9
            name = f"imagenet-{num_hosts}"
            yield Group(name=name, jobs=jobs, ways=(FIFO,), num_hosts=num_hosts, axis="Gbit/s", at=gbit, repeats=FEW)


def null_controls() -> Iterator[Group]:
    """Nothing to hide: a link without a limit and few bytes, or one worker."""
    jobs = named(*[replayed("resnet50", 32, 500)] * 2)
    yield Group(name="null-fast-link", jobs=jobs, ways=(FIFO, FAIR), rate_bps=None)
    yield Group(name="null-one-worker", jobs=named(*[at_rho(1.0, DURING_BACKWARD)] * 2), ways=(FIFO,), num_hosts=1)


def real_compute() -> Iterator[Group]:
    """Two hosts, real training on real data."""
    ways = (FIFO, HOLD, NAIVE)
    for name, strategy in (("no-overlap", AFTER_BACKWARD), ("overlap", DURING_BACKWARD)):
        alike = tuple(RESNET20_LARGE.job(own, strategy=strategy) for own in "ab")
        mixed = (RESNET20_LARGE.job("resnet", strategy=strategy), BERT_TINY.job("bert", strategy=strategy))
        for jobs in (alike, mixed):
            yield Group(name=name, jobs=jobs, ways=ways, num_hosts=2, num_steps=14, num_cost_steps=6)


QUESTIONS = (
    real_compute,
    rho_sweeps,
    heterogeneous,
    more_workers,
    null_controls,
    more_jobs,
    unsteady,
    unequal_lengths,
    on_top,
    papers_case,
)


def doubled_batch(options: Options) -> Iterator[Trial]:
    """The rival that needs no scheduler: one job with the devices to itself and twice the batch."""
    job = at_rho(1.0, DURING_BACKWARD)("a")
    job = replace(job, workload=replace(job.workload, batch_size=2 * job.workload.batch_size))
    fabric = options.fabric_spec(num_hosts=4, rate_bps=RATE_BPS)
    yield trial("crossover", "doubled-batch", (job,), fabric, options, num_steps=10, num_warmup=2)


def grid(options: Options) -> Sequence[Trial]:
    """All groups, repeat by repeat, so that what is compared lies close together in time."""
    if options.smoke:
        return [cell for group in _smoke() for cell in group.trials(options)]
    groups = [group for question in QUESTIONS for group in question()]
    rival = tuple(doubled_batch(options))
    return [
        replace(cell, repeat=repeat, seed=cell.seed + repeat)
        for repeat in range(options.repeats or MANY)
        for cells in (*(group.trials(options, repeat) for group in groups), rival if repeat < FEW else ())
        for cell in cells
    ]


def _smoke() -> Iterator[Group]:
    """One group of each kind, with few steps."""
    jobs = named(*[at_rho(1.0, DURING_BACKWARD)] * 2)
    every: Ways = (FIFO, FAIR, HOLD, NAIVE, *RIVALS, (Sharing.SLOT_BARRIER, Link.FIFO))
    yield Group(name="smoke", jobs=jobs, ways=every, num_hosts=2, num_steps=4, num_cost_steps=3)


SUITE = Suite(
    name="crossover",
    question="Does sharing in turns reach what the theory allows, and where does it beat the alternatives?",
    grid=grid,
)
