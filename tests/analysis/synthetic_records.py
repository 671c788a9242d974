"""Made-up but plausible records of the quick suite, for tests of the analysis only. Nothing here was measured."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from described import described

from results.record import (
    CurvePoint,
    Environment,
    FabricFacts,
    JobCosts,
    JobResult,
    Phases,
    Prediction,
    RankTimes,
    Record,
    Status,
    write_record,
)

ENVIRONMENT = Environment(
    commit="0123456789abcdef0123456789abcdef01234567",
    dirty=True,
    started_at="2024-01-02T03:04:05+00:00",
    machine="made-up 2-core machine",
    num_cores=2,
    memory_bytes=8 << 30,
    versions={"python": "3.11.9", "torch": "2.13.0", "horovod": "0.28.1"},
)
EMULATED = FabricFacts(
    kind="emulated", label="emulated", num_hosts=2, rate_bps=200e6, equivalent_rate_bps=200e6,
    alpha_s=4.1e-4, beta_s_per_byte=4.2e-8, fit_residual=0.021,
)  # fmt: skip
REPLAY = FabricFacts(
    kind="emulated", label="replay", num_hosts=4, rate_bps=200e6, equivalent_rate_bps=10e9, size_scale=50,
    alpha_s=7.3e-4, beta_s_per_byte=6.1e-8, fit_residual=0.034,
)  # fmt: skip
# label: (system, exposed share of the link time, share of the bytes on the wire, loss penalty)
COMPETITORS = {
    "unfused": ("ours", 0.95, 1.0, 0.0),
    "fixed-buckets": ("ours", 0.72, 1.0, 0.0),
    "tensor-fusion(cycle_s=0.005)": ("ours", 0.75, 1.0, 0.0),
    "tensor-fusion(cycle_s=0.005)+half": ("ours", 0.41, 0.5, 0.004),
    "fixed-buckets+topk(density=0.01)+error-feedback": ("ours", 0.12, 0.04, 0.05),
    "torch-ddp": ("torch-ddp", 0.72, 1.0, 0.0),
    "horovod(cycle_s=0.005, fusion_threshold_bytes=0)": ("horovod", 1.1, 1.02, 0.0),
    "horovod(cycle_s=0.005)": ("horovod", 0.8, 1.0, 0.0),
    "horovod(cycle_s=0.005, fp16=True)": ("horovod", 0.47, 0.5, 0.003),
    "local": ("local", 0.0, 0.0, 0.02),
}
WORKLOADS = {
    "resnet20-digits": ("cpu", 64, 272_474, 0.031, 0.046),
    "bert_tiny-text": ("cpu", 16, 4_386_178, 0.055, 0.71),
    "resnet50-replay": ("replay", 32, 511_141, 0.093, 0.083),
    "bert_base-replay": ("replay", 8, 2_189_643, 0.121, 0.36),
}


def job(workload: str, label: str, rng: np.random.Generator, *, num_steps: int = 40, num_ranks: int = 2) -> JobResult:
    """One job's result with noisy step times around compute + exposed share · link time."""
    device, batch_size, num_parameters, compute_s, link_s = WORKLOADS[workload]
    system, exposed_share, byte_share, penalty = COMPETITORS[label]
    ranks = 1 if system == "local" else num_ranks
    step_s = (compute_s + exposed_share * link_s) * rng.lognormal(0, 0.015)
    times = [tuple((step_s * rng.lognormal(0, 0.05, num_steps)).tolist()) for _ in range(ranks)]
    ours = system in ("ours", "local")
    sent = 4.0 * num_parameters * byte_share * 2 * (ranks - 1) / ranks
    return JobResult(
        name=workload.split("-")[0],
        workload=workload,
        system=system,
        strategy=label,
        device=device,
        batch_size=batch_size,
        num_steps=num_steps,
        num_parameters=num_parameters,
        ranks=tuple(RankTimes(rank=rank, warmup_s=(step_s,) * 3, steps_s=t) for rank, t in enumerate(times)),
        phases=Phases(
            compute_s=compute_s * 1.02 if ours else None,
            communication_s=link_s * byte_share if ours else None,
            exposed_s=exposed_share * link_s * 0.95 if ours else None,
            compress_s=0.002 if "+" in label else None,
            cpu_s=compute_s * 1.3,
        ),
        num_messages=65.0 if label == "unfused" else 4.0,
        wire_bytes={"gradient": sent, "control": 1_800.0} if system == "ours" else {},
        interface_bytes=sent * 1.043 + 5e3 if ranks > 1 else None,
        curve=() if device == "replay" else tuple(curve(step_s, num_steps, penalty, rng)),
        peak_memory_bytes=400 << 20,
        end_s=step_s * (num_steps + 3),
    )


def curve(step_s: float, num_steps: int, penalty: float, rng: np.random.Generator) -> Iterator[CurvePoint]:
    """An exponential fall of the training loss that stops `penalty` above the others, and two held-out points."""
    for step in range(1, num_steps + 1):
        loss = 0.2 + penalty + 2.1 * math.exp(-4 * step / num_steps) + abs(float(rng.normal(0, 0.01)))
        yield CurvePoint(step=step, time_s=step * step_s, loss=loss)
    for step in (num_steps // 2, num_steps):
        loss = 0.3 + penalty + 2.1 * math.exp(-4 * step / num_steps)
        yield CurvePoint(step=step, time_s=step * step_s, loss=loss, accuracy=max(0.1, 1 - loss / 2.4))


def single(workload: str, label: str, repeat: int, rng: np.random.Generator, fabric: FabricFacts = EMULATED) -> Record:
    """A record of one job."""
    group = "replay" if fabric.label == "replay" else "real"
    return described(
        Record(
            id=f"{group}-{workload}-{label}-{repeat}".replace(" ", "_"),
            suite="quick",
            cell=f"{group}/{workload}/{label}",
            repeat=repeat,
            seed=repeat,
            status=Status.OK,
            fabric=fabric,
            jobs=(job(workload, label, rng, num_ranks=fabric.num_hosts),),
            environment=ENVIRONMENT,
        )
    )


def shared(workloads: tuple[str, str], policy: str, repeat: int, rng: np.random.Generator) -> Record:
    """A record of two jobs on the same devices."""
    solo = [job(workload, "fixed-buckets", rng) for workload in workloads]
    times = [float(np.mean(one.step_times_s())) for one in solo]
    compute = [WORKLOADS[workload][3] for workload in workloads]
    period = max(sum(compute), *times)
    lengthening = {"exclusive": 1.0, "naive": 0.93 * sum(times) / max(times), "crossover": period * 1.04 / max(times)}
    jobs, clock = [], 0.0
    for one, solo_s, compute_s in zip(solo, times, compute, strict=True):
        costs = JobCosts(compute_s=compute_s, communication_s=0.0, solo_s=solo_s)
        factor = lengthening[policy] if policy == "exclusive" else lengthening[policy] * max(times) / solo_s
        ranks = tuple(
            RankTimes(rank=r.rank, warmup_s=r.warmup_s, steps_s=tuple(s * factor for s in r.steps_s)) for r in one.ranks
        )
        start = clock if policy == "exclusive" else 0.0
        clock = start + factor * solo_s * 43
        phases = Phases(
            compute_s=one.phases.compute_s,
            exposed_s=(one.phases.exposed_s or 0.0) * 0.4,
            turn_wait_s=0.02 if policy == "crossover" else 0.0,
        )
        jobs.append(
            JobResult(
                name=f"{one.name}-{len(jobs)}",
                workload=one.workload,
                system="ours",
                strategy="fixed-buckets",
                device=one.device,
                batch_size=one.batch_size,
                num_steps=40,
                num_parameters=one.num_parameters,
                ranks=ranks,
                phases=phases,
                wire_bytes={tag: size / 10 for tag, size in one.wire_bytes.items()},  # the line has to carry them
                interface_bytes=one.interface_bytes,
                start_s=start,
                end_s=clock,
                costs=costs if policy == "exclusive" else None,
            )
        )
    prediction = Prediction(
        source=f"measured c = {compute[0] * 1e3:.1f} and {compute[1] * 1e3:.1f} ms",
        period_s=period,
        gain=sum(times) / period,
    )
    return described(
        Record(
            id=f"sharing-{'-'.join(workloads)}-{policy}-{repeat}",
            suite="quick",
            cell=f"sharing/{'+'.join(workloads)}/{policy}",
            repeat=repeat,
            seed=repeat,
            status=Status.OK,
            sharing=policy,
            fabric=EMULATED,
            jobs=tuple(jobs),
            makespan_s=max(one.end_s for one in jobs),
            prediction=prediction if policy == "crossover" else None,
            environment=ENVIRONMENT,
        )
    )


def absent(cell: str, repeat: int, status: Status, reason: str) -> Record:
    """A record of a trial that did not end well and has no jobs."""
    return Record(
        id=f"{cell.replace('/', '-')}-{repeat}", suite="quick", cell=cell, repeat=repeat, seed=repeat,
        status=status, reason=reason, fabric=EMULATED, environment=ENVIRONMENT,
    )  # fmt: skip


def quick_suite(num_repeats: int = 5, seed: int = 7) -> list[Record]:
    """Everything the quick suite would write."""
    rng = np.random.default_rng(seed)
    records = []
    for repeat in range(num_repeats):
        for label in COMPETITORS:
            records += [single(name, label, repeat, rng) for name in ("resnet20-digits", "bert_tiny-text")]
            records += [single(name, label, repeat, rng, REPLAY) for name in ("resnet50-replay", "bert_base-replay")]
        for policy in ("exclusive", "naive", "crossover"):
            records.append(shared(("resnet20-digits", "resnet20-digits"), policy, repeat, rng))
            records.append(shared(("resnet20-digits", "bert_tiny-text"), policy, repeat, rng))
        reason = "Horovod is not installed; run `make setup` with a C++ compiler & cmake <3.14+>"
        records.append(absent("real/resnet20-digits/horovod(autotune=True)", repeat, Status.SKIPPED, reason))
    records.append(
        absent("real/bert_tiny-text/unfused+sign", 0, Status.TIMEOUT, "rank 1 on host 1 was silent for 60 s")
    )
    return records


if __name__ == "__main__":
    for made in quick_suite():
        write_record(made, Path(sys.argv[1]))
