"""Made-up but plausible records of the suite crossover, for tests of the analysis only. Nothing here was measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from described import described
from synthetic_records import ENVIRONMENT

from results.record import (
    FabricFacts,
    JobCosts,
    JobResult,
    Phases,
    Prediction,
    RankTimes,
    Record,
    SharingFacts,
    Status,
    write_record,
)

PLAIN = "single-bucket"
OVERLAP = "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)"
FUSED = "tensor-fusion(cycle_s=0.005)"
HALF = f"{OVERLAP}+half"
TOPK = "single-bucket+topk(density=0.01)"
NUM_STEPS = 10


@dataclass(frozen=True, slots=True)
class Work:
    """One job: c and m in seconds, and the part of its communication that its own computation hides."""

    workload: str = "resnet50-replay"
    compute_s: float = 0.0436
    link_s: float = 0.0436
    strategy: str = OVERLAP
    batch_size: int = 16
    num_steps: int = NUM_STEPS

    @property
    def solo_s(self) -> float:
        """The step alone: backward, two thirds of the computation, hides what fits unless one message waits for it."""
        hidden = 0.0 if self.strategy.startswith(PLAIN) else 0.6 * self.compute_s
        return self.compute_s + max(self.link_s - hidden, 0.05 * self.link_s)


RESNET, VGG = Work(compute_s=0.15, link_s=0.035, batch_size=64), Work("vgg16-replay", 0.05, 0.18, batch_size=8)
BERT = Work("bert_base-replay", 0.06, 0.14, batch_size=4)
# what a policy reaches of the theory's gain; hold and a naive start in phase stay near 1
REACHED = {
    "crossover": 0.985, "weighted": 0.97, "slot-barrier": 0.93, "muri": 0.9, "cassini": 0.88, "tick-tock": 0.87,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Jobs on a fabric, the ways to share that are tried, and where on a sweep they lie."""

    name: str
    work: tuple[Work, ...]
    ways: tuple[str, ...] = ("exclusive", "hold", "crossover")
    num_hosts: int = 4
    size_scale: int = 148
    axis: str = ""
    at: float | None = None
    repeats: int = 10
    label: str = "replay"
    alpha_s: float = 7e-4
    phases: tuple[float, ...] = ()

    def records(self, rng: np.random.Generator) -> Iterator[Record]:
        """Every repeat of every way."""
        for repeat in range(self.repeats):
            for way in self.ways:
                yield record(self, way, repeat, rng)
            for phase in self.phases:
                yield record(self, "naive", repeat, rng, phase=phase)


def fabric(group: Group) -> FabricFacts:
    """A link of 200 Mbit/s and what it stands for."""
    return FabricFacts(
        kind="emulated", label=group.label, num_hosts=group.num_hosts, rate_bps=200e6,
        equivalent_rate_bps=200e6 * group.size_scale, size_scale=group.size_scale,
        alpha_s=group.alpha_s, beta_s_per_byte=6e-8, fit_residual=0.03,
    )  # fmt: skip


def gain_of(group: Group, way: str, phase: float | None) -> tuple[float, float]:
    """The bound Σt/T* and the gain that the way reaches."""
    solo = [work.solo_s for work in group.work]
    period = max(sum(w.compute_s for w in group.work), sum(w.link_s for w in group.work), *solo)
    bound = sum(solo) / period
    policy, _, link = way.partition("/")
    if policy in ("exclusive", "hold"):
        return bound, 1.0
    if policy == "naive":
        offset = 0.0 if phase is None else 1.0 - abs(1.0 - 2.0 * phase)
        return bound, 1.0 + (bound - 1.0) * (0.15 + 0.7 * offset)
    mixed = len({work.workload for work in group.work}) > 1
    fair = 0.9 if link == "fair" and mixed else 1.0
    return bound, max(1.0, bound * REACHED[policy] * fair) if bound > 1.02 else bound * 0.985


def record(group: Group, way: str, repeat: int, rng: np.random.Generator, phase: float | None = None) -> Record:
    """One trial. `way` is a policy, `policy/fair` with a fairly shared link."""
    policy, _, link = way.partition("/")
    bound, gain = gain_of(group, way, phase)
    num_jobs = len(group.work)
    alone = policy == "exclusive"
    scale = 1.0 if alone else num_jobs / gain
    noise = rng.lognormal(0.0, 0.002)
    jobs, clock = [], 0.0
    for place, work in enumerate(group.work):
        slot = _common(group) if not alone and policy != "weighted" else work.solo_s
        here_s = work.solo_s if alone else scale * (slot if slot else work.solo_s)
        made = job(work, "abcd"[place], here_s * noise, rng, with_costs=alone, num_ranks=group.num_hosts)
        length = sum(made.step_times_s())
        jobs.append(replace(made, start_s=clock, end_s=clock + length))
        clock = clock + length if alone else 0.0
    where = f"{group.name}-{group.at:g}" if group.at is not None else group.name
    label = way.replace("/", "-") + ("-link" if link else "") if phase is None else f"naive-from-{phase:g}"
    cell = f"{where}/{'+'.join(work.workload for work in group.work)}/{label}"
    return described(
        Record(
            id=f"{cell}-{repeat}".replace("/", "."),
            suite="crossover",
            cell=cell,
            repeat=repeat,
            seed=repeat,
            status=Status.OK,
            sharing=policy,
            link=(link or "fifo") if policy in ("crossover", "weighted") else "",
            axis=group.axis if phase is None else "phase",
            at=group.at if phase is None else phase,
            fabric=fabric(group),
            jobs=tuple(jobs),
            makespan_s=sum(j.end_s - j.start_s for j in jobs) if alone else max(j.end_s for j in jobs),
            prediction=Prediction(
                source="made up",
                period_s=0.1,
                gain=bound,
                expected_period_s=0.101,
                expected_gain=max(1.0, bound * 0.99),
            ),
            sharing_facts=facts(policy, bound, num_jobs, rng),
            environment=ENVIRONMENT,
        )
    )


def _common(group: Group) -> float:
    """A step of each job in turn: all jobs then take equally long, so that Σ solo/here is the gain."""
    return sum(work.solo_s for work in group.work) / len(group.work)


def job(
    work: Work, name: str, step_s: float, rng: np.random.Generator, *, with_costs: bool, num_ranks: int
) -> JobResult:
    """One job with steps near `step_s`."""
    steps = [tuple((step_s * rng.lognormal(0, 0.01, work.num_steps)).tolist()) for _ in range(num_ranks)]
    costs = JobCosts(compute_s=work.compute_s, communication_s=work.link_s, solo_s=work.solo_s)
    return JobResult(
        name=name,
        workload=work.workload,
        system="ours",
        strategy=work.strategy,
        device="replay" if work.workload.endswith("replay") else "cpu",
        batch_size=work.batch_size,
        num_steps=work.num_steps,
        num_parameters=1000,
        ranks=tuple(RankTimes(rank=rank, warmup_s=(), steps_s=times) for rank, times in enumerate(steps)),
        phases=Phases(compute_s=work.compute_s, exposed_s=work.solo_s - work.compute_s, turn_wait_s=0.01),
        num_messages=1.0 if work.strategy.startswith("single-bucket") else 4.0,
        wire_bytes={"gradient": 4000.0},
        weights_digest=f"{name}{work.workload}{work.num_steps}",
        peak_memory_bytes=200 << 20,
        costs=costs if with_costs else None,
    )


def facts(policy: str, bound: float, num_jobs: int, rng: np.random.Generator) -> SharingFacts:
    """Hand-overs around 60 µs."""
    p50_s = 60e-6 * float(rng.lognormal(0, 0.1))
    busy = 0.55 if policy == "exclusive" else min(0.97, 0.5 * bound)
    return SharingFacts(
        num_handovers=0 if policy == "naive" else 40,
        handover_p50_s=None if policy == "naive" else p50_s,
        handover_p99_s=None if policy == "naive" else 4 * p50_s,
        device_busy=busy,
        link_busy=busy * 0.9,
        peak_memory_bytes=num_jobs * (200 << 20),
    )


RIVALS = ("tick-tock", "cassini", "muri", "weighted")
EVERY = ("exclusive", "hold", "naive", "slot-barrier", "crossover", "crossover/fair")


def groups() -> Iterator[Group]:
    """The suite's questions in small."""
    for strategy, name in ((PLAIN, "rho-no-overlap"), (OVERLAP, "rho-overlap")):
        for rho in (0.25, 0.5, 1.0, 2.0, 4.0):
            work = Work(strategy=strategy, link_s=0.0436 * rho)
            ways = ("exclusive", "crossover", "crossover/fair", *(("hold", "naive") if rho == 1 else ()))
            yield Group(name=name, work=(work, work), ways=ways, axis="ρ", at=rho, size_scale=round(148 / rho))
    phases = (0.0, 0.2, 0.4, 0.6, 0.8)
    ways = ("exclusive", "hold", "crossover", "crossover/fair", *RIVALS)
    yield Group(name="heterogeneous", work=(RESNET, VGG), ways=ways, phases=phases, size_scale=200)
    yield Group(name="heterogeneous", work=(RESNET, BERT), ways=EVERY, size_scale=200)
    yield Group(name="heterogeneous-8", work=(RESNET, VGG), ways=EVERY, num_hosts=8, size_scale=200)
    for hosts in (2, 8):
        yield Group(
            name="hosts", work=(Work(), Work()), ways=("exclusive", "crossover", "crossover/fair"), num_hosts=hosts,
            axis="hosts", at=hosts,
        )  # fmt: skip
    for k in (2, 3, 4):
        work = (Work(strategy=PLAIN),) * k
        yield Group(
            name="jobs", work=work, ways=("exclusive", "crossover", "slot-barrier"), axis="jobs", at=k, repeats=3
        )
    for jitter in (0.1, 0.3):
        yield Group(
            name="jitter",
            work=(Work(strategy=PLAIN),) * 2,
            axis="jitter",
            at=jitter,
            repeats=3,
            ways=("exclusive", "crossover"),
        )
    unequal = (RESNET, replace(VGG, num_steps=20))
    yield Group(name="unequal-lengths", work=unequal, ways=("exclusive", "naive", "crossover"), size_scale=200)
    for name, strategy, factor in (("fusion", FUSED, 1.05), ("half", HALF, 0.5), ("topk", TOPK, 0.05)):
        yield Group(name=f"on-top-{name}", work=(Work(strategy=strategy, link_s=0.0436 * factor),) * 2)
    for hosts, workload, scale, rho in (
        (4, "resnet50", 50, 1.8), (4, "resnet50", 125, 0.8), (4, "vgg16", 125, 3.0), (4, "vgg16", 500, 0.9),
        (8, "resnet50", 50, 2.2), (8, "vgg16", 500, 1.1),
    ):  # fmt: skip
        work = Work(f"{workload}-replay", link_s=0.0436 * rho, batch_size=32)
        yield Group(
            name=f"imagenet-{hosts}", work=(work, work), ways=("exclusive", "crossover"), num_hosts=hosts,
            axis="Gbit/s", at=scale / 5, size_scale=scale,
        )  # fmt: skip
    yield Group(name="null-bytes", work=(Work(link_s=1e-4),) * 2, size_scale=100_000)
    yield Group(name="null-one-worker", work=(Work(link_s=1e-4),) * 2, num_hosts=1)
    real = Work("resnet20-digits", 0.07, 0.06, PLAIN, 128)
    yield Group(
        name="no-overlap", work=(real, real), ways=("exclusive", "hold", "naive", "crossover"), num_hosts=2,
        size_scale=1, label="emulated",
    )  # fmt: skip


def doubled_batch(rng: np.random.Generator) -> Iterator[Record]:
    """One job with the batches of two, beside the pair at ρ = 1 with overlap."""
    work = Work(batch_size=32)
    group = Group(name="doubled-batch", work=(work,))
    for repeat in range(3):
        made = job(work, "a", 1.5 * work.solo_s, rng, with_costs=False, num_ranks=4)
        yield described(Record(
            id=f"doubled-batch-{repeat}", suite="crossover", cell=f"doubled-batch/{work.workload}/{OVERLAP}",
            repeat=repeat, seed=repeat, status=Status.OK, fabric=fabric(group), jobs=(made,), environment=ENVIRONMENT,
        ))  # fmt: skip


def crossover_suite(seed: int = 5, only: Sequence[str] = ()) -> list[Record]:
    """Everything, or the groups whose name starts with one of `only`."""
    return list(_suite(seed, tuple(only)))


@cache
def _suite(seed: int, only: tuple[str, ...]) -> Sequence[Record]:
    rng = np.random.default_rng(seed)
    wanted = [group for group in groups() if not only or group.name.startswith(only)]
    records = [made for group in wanted for made in group.records(rng)]
    return records + list(doubled_batch(rng)) if not only or "doubled-batch" in only else records


if __name__ == "__main__":
    for made in crossover_suite():
        write_record(made, Path(sys.argv[1]))
