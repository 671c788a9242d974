"""The suite `crossover`: jobs in turns against their bound, their rivals and themselves alone.

Every group asks one question of a sceptical reviewer (README.md beside this file). Within a group the exclusive trial
comes first: it is the denominator, and the costs c, m, t that it measures predict the others. Replayed jobs run on the
modelled link of one rank among 2 to 64; real sockets validate them on 2 and 4 hosts, and carry what computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from analysis.sharing.axes import ALPHA
from crossover import Sharing
from fabric.api import FabricSpec
from harness.trial import Job, Link, Trial
from models.workload import Device, WorkloadSpec
from suites.api import ALPHA_S, Options, Suite, interleave
from suites.data import jobs_with_data
from suites.recipes import BERT_TINY, RATE_BPS, RESNET20_LARGE, trial
from suites.scaling import distinct

AFTER_BACKWARD = "single-bucket"
DURING_BACKWARD = "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)"
HOROVOD = "horovod(cycle_s=0.005)"
PHASES = (0.0, 0.2, 0.4, 0.6, 0.8)
RHOS = (0.25, 0.5, 1.0, 2.0, 4.0)
NUM_REPEATS = 8  # claims that compare five points at once are decided by no fewer
WORKERS = (2, 4, 8, 16, 64)
ALPHAS_S = (5e-6, 100e-6, 300e-6, 1e-3)  # beside a network card's 20 µs, up to that of emulated hosts
SLOWER_OF_4 = 4  # so many times longer all takes on four emulated hosts, which leaves two cores half idle
VALIDATED = ((2, 1), (4, SLOWER_OF_4))  # hosts, and how many times longer all takes
NUM_SETTLING = 30  # a link that is busier than the device by 1 % makes its jobs wait only after tens of steps
NUM_WORKERS = 8  # unless a group asks for others
COMPUTE_S = 2.725e-3  # of ResNet-50, forward and backward, an image
LINE_S = 25_557_032 * 32 / RATE_BPS  # of all its gradients, once

Jobs = tuple[Job, ...]
Ways = tuple[tuple[Sharing, Link], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trials of the same jobs on the same fabric: exclusive first, then each way to share."""

    name: str
    jobs: Jobs
    ways: Ways
    num_workers: int = NUM_WORKERS
    rate_bps: float | None = RATE_BPS
    alpha_s: float = ALPHA_S
    on_sockets: bool = False
    axis: str = ""
    at: float | None = None
    num_steps: int = 8
    num_settling: int = 2  # steps before those that count
    num_cost_steps: int = 5
    rivals: Ways = ()
    phases: Sequence[float] = ()

    def fabric(self, options: Options) -> FabricSpec:
        """Sockets for what computes or validates, else the modelled link. Raises: FabricError."""
        if self.on_sockets:
            return options.fabric_spec(num_hosts=self.num_workers, rate_bps=self.rate_bps)
        return options.paced_spec(num_workers=self.num_workers, rate_bps=self.rate_bps, alpha_s=self.alpha_s)

    def trials(self, options: Options) -> Iterator[Trial]:
        """One repeat, in the order in which it runs."""
        fabric = self.fabric(options)
        name = self.name if self.at is None else f"{self.name}-{self.at:g}"
        base = trial(
            "crossover",
            name,
            jobs_with_data(self.jobs, options),
            fabric,
            options,
            num_steps=self.num_steps,
            num_warmup=self.num_settling,
            sharing=Sharing.EXCLUSIVE,
            num_cost_steps=self.num_cost_steps,
            axis=self.axis,
            at=self.at,
        )
        yield base
        for sharing, link in (*self.ways, *self.rivals):
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


def at_rho(rho: float, strategy: str, num_workers: int = NUM_WORKERS) -> Callable[[str], Job]:
    """ResNet-50 whose communication takes `rho` times its computation among so many workers; the longer of the two
    about 90 ms, so that a hand-over is small beside it."""
    batch_size = 32 if rho <= 1 else round(32 / rho)
    messages_s = 2 * (num_workers - 1) / num_workers * LINE_S
    return replayed("resnet50", batch_size, round(messages_s / (rho * COMPUTE_S * batch_size)), strategy)


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


COMPUTE_BOUND = replayed("resnet50", 32, 400)
VGG_BOUND = replayed("vgg16", 8, 400)
BERT_BOUND = replayed("bert_base", 4, 400)
VGG, BERT = named(COMPUTE_BOUND, VGG_BOUND), named(COMPUTE_BOUND, BERT_BOUND)


def heterogeneous() -> Iterator[Group]:
    """A compute-bound job with a communication-bound one, against every rival."""
    yield Group(name="heterogeneous", jobs=VGG, ways=(FIFO, FAIR, HOLD), rivals=RIVALS, phases=PHASES)
    yield Group(name="heterogeneous", jobs=BERT, ways=(FIFO, FAIR, HOLD, NAIVE))


def more_jobs() -> Iterator[Group]:
    """Three and four jobs: identical ones need no more than two, mixed ones may."""
    barrier = (Sharing.SLOT_BARRIER, Link.FIFO)
    for k in (2, 3, 4):
        jobs = named(*[at_rho(1.0, AFTER_BACKWARD)] * k)
        yield Group(name="jobs", jobs=jobs, ways=(FIFO, barrier), axis="jobs", at=k)
    mixed = named(COMPUTE_BOUND, VGG_BOUND, replayed("resnet50", 16, 400))
    yield Group(name="mixed", jobs=mixed, ways=(FIFO, barrier, (Sharing.MURI, Link.FIFO)))


def more_workers() -> Iterator[Group]:
    """2 to 64 workers: identical jobs without and with overlap, and mixed ones."""
    for number in WORKERS:
        after, during = (named(*[at_rho(1.0, text, number)] * 2) for text in (AFTER_BACKWARD, DURING_BACKWARD))
        for name, jobs in (("hosts-no-overlap", after), ("hosts", during), ("hosts-mixed", VGG)):
            yield Group(
                name=name,
                jobs=jobs,
                ways=(FIFO,),
                num_workers=number,
                axis="hosts",
                at=number,
                num_settling=NUM_SETTLING,
            )


def start_up_times() -> Iterator[Group]:
    """The same jobs while a step of a collective takes from 5 µs to 1 ms."""
    for alpha_s in ALPHAS_S:
        jobs = named(*[at_rho(1.0, DURING_BACKWARD)] * 2)
        yield Group(
            name="alpha",
            jobs=jobs,
            ways=(FIFO,),
            alpha_s=alpha_s,
            axis=ALPHA,
            at=1e6 * alpha_s,
            num_settling=NUM_SETTLING,
        )


def validation() -> Iterator[Group]:
    """The modelled link at two α against sockets, whose own is about there."""
    for number, times in VALIDATED:
        # Communication-bound, so that α tells; at ρ = 1 it takes the jobs tens of steps to find out that they are.
        same = named(*[at_rho(1.5, DURING_BACKWARD, number)] * 2)
        for name, jobs, num_settling in (("same", same, 6), ("mixed", VGG, 2)):
            pair = Group(
                name=f"sockets-{name}-{number}",
                jobs=tuple(_longer(job, times) for job in jobs),
                ways=(FIFO,),
                num_workers=number,
                rate_bps=RATE_BPS / times,
                on_sockets=True,
                num_settling=num_settling,
            )
            yield pair
            for alpha_s in ALPHAS_S[2:]:
                modelled = f"modelled-{name}-{number}"
                yield replace(pair, name=modelled, on_sockets=False, alpha_s=alpha_s, axis=ALPHA, at=1e6 * alpha_s)


def _longer(job: Job, times: int) -> Job:
    """So many times the batch, and so the computation."""
    return replace(job, workload=replace(job.workload, batch_size=times * job.workload.batch_size))


def unsteady() -> Iterator[Group]:
    """Jitter of every worker's computation, and one worker slower than the others: real ranks, which differ."""
    steady = _longer(at_rho(1.0, AFTER_BACKWARD, 4)(""), SLOWER_OF_4).workload
    cases = [("jitter", "jitter", at, replace(steady, jitter=at)) for at in (0.1, 0.3)]
    cases += [("slow-worker", "slow worker", at, replace(steady, slow_worker=at)) for at in (1.25, 1.5)]
    for name, axis, at, workload in cases:
        yield Group(
            name=name,
            jobs=_alike(workload),
            ways=(FIFO,),
            num_workers=4,
            rate_bps=RATE_BPS / SLOWER_OF_4,
            on_sockets=True,
            axis=axis,
            at=at,
        )


def _alike(workload: WorkloadSpec) -> Jobs:
    return tuple(Job(name=name, workload=workload, strategy=AFTER_BACKWARD, optimizer="sgd(lr=0.1)") for name in "ab")


def unequal_lengths() -> Iterator[Group]:
    """One job makes twice as many steps; the rest of its time it is alone."""
    a, b = VGG
    yield Group(name="unequal-lengths", jobs=(a, replace(b, num_steps=16)), ways=(FIFO, NAIVE))


def on_top() -> Iterator[Group]:
    """Fusion and compression alone and with turns: the less is exposed, the less there is to gain."""
    strategies = {
        "fusion": "tensor-fusion(cycle_s=0.005)",
        "half": f"{DURING_BACKWARD}+half",
        "topk": "single-bucket+topk(density=0.01)",
    }
    for name, strategy in strategies.items():
        jobs = named(*[at_rho(1.0, strategy)] * 2)
        yield Group(name=f"on-top-{name}", jobs=jobs, ways=(FIFO,))


def papers_case() -> Iterator[Group]:
    """ImageNet classification at several rates; a rate is what the scaled link stands for, in Gbit/s."""
    cases = (("resnet50", 32, (50, 125)), ("vgg16", 16, (250, 500)))
    for network, batch_size, scales in cases:
        for scale in scales:
            jobs = named(*[replayed(network, batch_size, scale)] * 2)
            gbit = scale * RATE_BPS / 1e9
            yield Group(name="imagenet-8", jobs=jobs, ways=(FIFO,), axis="Gbit/s", at=gbit)


def null_controls() -> Iterator[Group]:
    """Nothing to hide: a link without a limit and few bytes, or one worker."""
    jobs = named(*[replayed("resnet50", 32, 500)] * 2)
    yield Group(name="null-fast-link", jobs=jobs, ways=(FIFO, FAIR), rate_bps=None)
    yield Group(name="null-one-worker", jobs=named(*[at_rho(1.0, DURING_BACKWARD)] * 2), ways=(FIFO,), num_workers=1)


def real_compute() -> Iterator[Group]:
    """Two hosts, real training on real data."""
    ways = (FIFO, HOLD, NAIVE)
    for name, strategy in (("no-overlap", AFTER_BACKWARD), ("overlap", DURING_BACKWARD)):
        alike = tuple(RESNET20_LARGE.job(own, strategy=strategy) for own in "ab")
        mixed = (RESNET20_LARGE.job("resnet", strategy=strategy), BERT_TINY.job("bert", strategy=strategy))
        for jobs in (alike, mixed):
            yield Group(name=name, jobs=jobs, ways=ways, num_workers=2, on_sockets=True, num_steps=14, num_cost_steps=6)
    # The prototype sits on Horovod.
    jobs = tuple(RESNET20_LARGE.job(own, system=HOROVOD) for own in "ab")
    yield Group(name="horovod", jobs=jobs, ways=ways, num_workers=2, on_sockets=True, num_steps=14, num_cost_steps=6)


QUESTIONS = (
    real_compute,
    rho_sweeps,
    heterogeneous,
    more_workers,
    start_up_times,
    validation,
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
    fabric = options.paced_spec(num_workers=NUM_WORKERS, rate_bps=RATE_BPS)
    yield trial("crossover", "doubled-batch", (job,), fabric, options, num_steps=10, num_warmup=2)


def grid(options: Options) -> Sequence[Trial]:
    """All groups, repeat by repeat, so that what is compared lies close together in time."""
    if options.smoke:
        return [cell for group in _smoke() for cell in group.trials(options)]
    cells = [cell for question in QUESTIONS for group in question() for cell in group.trials(options)]
    return interleave(distinct([*cells, *doubled_batch(options)]), options.num_repeats(NUM_REPEATS))


def _smoke() -> Iterator[Group]:
    """One group of each kind, with few steps."""
    jobs = named(*[at_rho(1.0, DURING_BACKWARD)] * 2)
    every: Ways = (FIFO, FAIR, HOLD, NAIVE, *RIVALS, (Sharing.SLOT_BARRIER, Link.FIFO))
    yield Group(name="smoke", jobs=jobs, ways=every, num_workers=2, num_steps=4, num_cost_steps=3)


SUITE = Suite(
    name="crossover",
    question="Does sharing in turns reach what the theory allows, and where does it beat the alternatives?",
    grid=grid,
    budget_s=4200.0,
)
