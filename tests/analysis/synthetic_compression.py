"""Made-up records of the suite compression, by formulas of step times and of accuracy. Nothing here was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from described import described
from synthetic_records import ENVIRONMENT

from results.record import CurvePoint, FabricFacts, JobResult, Phases, Prediction, RankTimes, Record, Status

BUCKETS = "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)"
COMPUTE_S, NUM_PARAMETERS, NUM_STEPS = 0.02, 250_000, 40
RATES = (50e6, 200e6, 500e6, 1e9, None)
HOME_BPS = 200e6


@dataclass(frozen=True, slots=True)
class Method:
    """Its text, bits per parameter, seconds of coding a step, and the steps that it takes to the target."""

    text: str
    bits: float
    codec_s: float
    steps: int


METHODS: Mapping[str, Method] = {
    "dense": Method(BUCKETS, 32.0, 0.0, 20),
    "fp16": Method(f"{BUCKETS}+half", 16.0, 0.001, 20),
    "top-k 1 %": Method(f"{BUCKETS}+topk(density=0.01)+error-feedback", 0.61, 0.004, 24),
    "DGC 0.1 %": Method(f"{BUCKETS}+dgc(density=0.001, warmup_steps=4)", 0.08, 0.004, 36),
    "QSGD 4 bit": Method(f"{BUCKETS}+qsgd(bits=4, bucket=512)", 4.06, 0.03, 22),
    "1-bit SGD": Method(f"{BUCKETS}+onebit+double-squeeze+error-feedback+warm-up(steps=4)", 1.2, 0.006, 99),
}


def step_s(method: Method, rate_bps: float | None, num_parameters: int = NUM_PARAMETERS) -> float:
    """Computation, coding and the link, one after the other."""
    link_s = 0.0 if rate_bps is None else method.bits * num_parameters / rate_bps
    return COMPUTE_S + method.codec_s + link_s


def record(name: str, rate_bps: float | None, repeat: int, *, off: float = 1.0) -> Record:
    """One repeat; at the rate of training it is evaluated every 4 steps."""
    method = METHODS[name]
    each_s = step_s(method, rate_bps) * off
    times = tuple(RankTimes(rank=rank, warmup_s=(each_s,) * 4, steps_s=(each_s,) * (NUM_STEPS - 4)) for rank in (0, 1))
    dense_bits, warm = METHODS["dense"].bits, 4 if "warm-up" in method.text else 0
    bits = (warm * dense_bits + (NUM_STEPS - warm) * method.bits) / NUM_STEPS
    at_home = rate_bps == HOME_BPS
    job = JobResult(
        name="job", workload="resnet20-digits", system="ours", strategy=method.text, device="cpu", batch_size=64,
        num_steps=NUM_STEPS - 4, num_parameters=NUM_PARAMETERS, ranks=times,
        phases=Phases(
            compute_s=COMPUTE_S, exposed_s=each_s - COMPUTE_S, compress_s=method.codec_s,
            decompress_s=method.codec_s / 4,
        ),
        wire_bytes={"gradient": bits * NUM_PARAMETERS / 8}, curve=tuple(_curve(method, each_s)) if at_home else (),
    )  # fmt: skip
    group = "unshaped" if rate_bps is None else "converge" if at_home else f"rate-{rate_bps / 1e6:g}"
    return described(Record(
        id=f"compression-{group}-{name}-{repeat}", suite="compression", cell=f"{group}/resnet20-digits/{name}",
        repeat=repeat, seed=1 + repeat, status=Status.OK, jobs=(job,), environment=ENVIRONMENT,
        axis="" if rate_bps is None else "Gbit/s", at=None if rate_bps is None else rate_bps / 1e9,
        trial={"num_warmup": 4},
        fabric=FabricFacts(
            kind="emulated", label="emulated", num_hosts=2, rate_bps=rate_bps, equivalent_rate_bps=rate_bps
        ),
    ))  # fmt: skip


def _curve(method: Method, each_s: float) -> Iterator[CurvePoint]:
    yield CurvePoint(step=1, time_s=each_s, loss=2.3)
    for step in range(4, NUM_STEPS + 1, 4):
        accuracy = 0.9 if step >= method.steps else 0.3
        yield CurvePoint(step=step, time_s=step * each_s, loss=1 - accuracy, accuracy=accuracy)


def replayed(name: str, hosts: int, gbit: float, repeat: int, measured_s: float | None, predicted_s: float) -> Record:
    """A replayed cell, or with `measured_s` None what is predicted of it."""
    made, method = record(name, 500e6, repeat), METHODS[name]
    each_s = predicted_s if measured_s is None else measured_s
    ranks = tuple(RankTimes(rank=rank, warmup_s=(), steps_s=(each_s,) * 3) for rank in range(hosts))
    label = "simulated" if measured_s is None else "replay"
    tail = "/8-hosts" if measured_s is None else ""
    told = Prediction(source="virtual clock", step_time_s=predicted_s)
    notes = {"compression in replay": "charged: it takes 1 ns an element among 8 ranks (one core of a processor)"}
    job = replace(
        made.jobs[0], workload="resnet50-replay", batch_size=32, ranks=ranks, num_steps=3,
        notes={} if name == "dense" else notes, strategy=method.text.replace(", warmup_steps=4", ""),
        wire_bytes={"gradient": method.bits * (hosts - 1) * NUM_PARAMETERS / 8},
        phases=Phases(compute_s=0.09, exposed_s=each_s - 0.09, compress_s=0.013, decompress_s=0.006),
    )  # fmt: skip
    return described(replace(
        made, id=f"compression-{label}-{hosts}-{gbit:g}-{name}-{repeat}", jobs=(job,), prediction=told, axis="Gbit/s",
        cell=f"replay-{hosts}-{gbit:g}/resnet50-replay/{name}{tail}", at=gbit,
        fabric=FabricFacts(
            kind="emulated", label=label, num_hosts=hosts, rate_bps=gbit * 2e7, equivalent_rate_bps=gbit * 1e9,
            size_scale=50,
        ),
    ))  # fmt: skip


def compression_suite(repeats: int = 8) -> list[Record]:
    """Every method at every rate, trained at 200 Mbit/s, and a replayed network at 10 Gbit/s with its predictions."""
    rng = np.random.default_rng(3)
    records = [
        record(name, rate, repeat, off=float(rng.lognormal(0, 0.003)))
        for repeat in range(repeats)
        for rate in RATES
        for name in METHODS
    ]
    for name, (slow_s, middle_s, fast_s) in {
        "dense": (0.4, 0.2, 0.092), "fp16": (0.25, 0.15, 0.1), "DGC 0.1 %": (0.2, 0.18, 0.17),
    }.items():  # fmt: skip
        records += [replayed(name, 8, 10.0, repeat, middle_s * 1.02, middle_s) for repeat in range(repeats)]
        for gbit, predicted_s in ((5.0, slow_s), (10.0, middle_s), (100.0, fast_s)):
            records.append(replayed(name, 8, gbit, 0, None, predicted_s))
    return records
