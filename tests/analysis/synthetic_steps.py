"""Made-up records of the suites fusion and ordering, by a formula of step times. Nothing here was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from described import described
from synthetic_records import ENVIRONMENT

from results.record import FabricFacts, JobResult, Phases, Prediction, RankTimes, Record, Status

SCALES = {1.0: (200e6, 5), 5.0: (200e6, 25), 10.0: (200e6, 50), 25.0: (500e6, 50), 100.0: (1e9, 100)}
ALPHA_S = 3e-4
NETWORKS = {"resnet50": (0.087, 102e6, 32), "vgg16": (0.167, 553e6, 32)}  # compute, bytes, batch
# label in real sizes: messages, share of the link time that computation hides at best
FUSION = {
    "unfused": (160, 0.6),
    "fixed-buckets(bucket_bytes=26214400, first_bucket_bytes=1048576)": (6, 0.6),
    "tensor-fusion(threshold_bytes=134217728, cycle_s=0.005)": (8, 0.55),
    "mg-wfbp": (20, 0.65),
    "optimal-merge": (18, 0.66),
}
ORDERING = {
    "unfused": (32, 0.5),
    "slices(slice_elements=2000000)+at-pre-hook": (80, 0.8),
    "slices(slice_elements=2000000)+p3+at-pre-hook": (81, 0.99),
    'unfused+tictac(variant="tic")+at-pre-hook': (32, 0.9),
    "slices(slice_elements=2000000)+bytescheduler(credit_bytes=16000000)+at-pre-hook": (82, 0.98),
    "unfused+at-pre-hook+parameter-server": (32, 0.8),
    "slices(slice_elements=2000000)+p3+at-pre-hook+parameter-server": (80, 0.97),
}
METHODS = {"fusion": FUSION, "ordering": ORDERING}


@dataclass(frozen=True, slots=True)
class Cell:
    """A method in a place."""

    suite: str
    network: str
    method: str
    workers: int
    gbit: float

    @property
    def step_s(self) -> float:
        """Computation, and what of the messages it cannot hide."""
        compute_s, num_bytes, _ = NETWORKS[self.network]
        messages, hidden = METHODS[self.suite][self.method]
        link_s = messages * ALPHA_S + 8 * num_bytes * 2 * (self.workers - 1) / self.workers / (self.gbit * 1e9)
        return compute_s + max(link_s - hidden * compute_s, (1 - hidden) * link_s)


def shrunk(label: str, scale: int) -> str:
    """The label as a cell of this size scale has it."""
    return re.sub(r"(_bytes|_elements)=(\d+)", lambda found: f"{found[1]}={round(int(found[2]) / scale)}", label)


def facts(workers: int, gbit: float, label: str) -> FabricFacts:
    rate_bps, scale = SCALES[gbit]
    hosts = min(workers, 8)
    ring = 2 * (workers - 1) / workers
    return FabricFacts(
        kind="emulated", label=label, num_hosts=hosts, num_virtual=workers - hosts, rate_bps=rate_bps,
        equivalent_rate_bps=rate_bps * scale, size_scale=scale, alpha_s=ALPHA_S,
        beta_s_per_byte=8 * ring / rate_bps, fit_residual=0.02,
    )  # fmt: skip


def record(cell: Cell, repeat: int, step_s: float, label: str = "replay", system: str = "ours") -> Record:
    """One record of one job; `label` is the evidence."""
    compute_s, num_bytes, batch = NETWORKS[cell.network]
    scale = SCALES[cell.gbit][1]
    method = shrunk(cell.method, scale)
    ranks = 1 if system == "local" else min(cell.workers, 8)
    times = tuple(RankTimes(rank=rank, warmup_s=(), steps_s=(step_s,) * 3) for rank in range(ranks))
    job = JobResult(
        name="job", workload=f"{cell.network}-replay", system=system.partition("(")[0],
        strategy=method if system == "ours" else system, device="replay", batch_size=batch, num_steps=3,
        num_parameters=round(num_bytes / 4 / scale), ranks=times,
        phases=Phases(compute_s=compute_s, exposed_s=max(0.0, step_s - compute_s)), num_messages=8.0,
    )  # fmt: skip
    shown = method if system == "ours" else system
    group = f"replay-{cell.workers}-{cell.gbit:g}"
    return described(Record(
        id=f"{cell.suite}-{label}-{group}-{cell.network}-{shown}-{repeat}", suite=cell.suite,
        cell=f"{group}/{cell.network}-replay/{shown}", repeat=repeat, seed=repeat, status=Status.OK, axis="Gbit/s",
        at=cell.gbit, fabric=facts(cell.workers, cell.gbit, label), jobs=(job,), environment=ENVIRONMENT,
    ))  # fmt: skip


def predicted(cell: Cell) -> Record:
    return record(cell, 0, cell.step_s, label="simulated")


def measured(cell: Cell, *, off: float = 0.0, repeats: int = 10, seed: int = 3) -> Iterator[Record]:
    """Repeats around the formula times 1 + `off`, each with the formula beside it as its prediction."""
    rng = np.random.default_rng([seed, *cell.method.encode(), cell.workers, int(cell.gbit)])
    for repeat in range(repeats):
        step_s = cell.step_s * (1 + off) * float(rng.lognormal(0, 0.004))
        told = Prediction(source="virtual clock", step_time_s=cell.step_s)
        yield replace(record(cell, repeat, step_s), prediction=told)


def alone(cell: Cell, repeats: int = 10) -> Iterator[Record]:
    compute_s = NETWORKS[cell.network][0]
    for repeat in range(repeats):
        yield record(cell, repeat, compute_s, system="local")


def step_suites() -> list[Record]:
    """Both suites: a few places measured, all predicted, up to 1,024 workers."""
    places = {"resnet50": ((4, 5.0), (4, 25.0), (4, 100.0), (8, 10.0)), "vgg16": ((4, 10.0), (4, 25.0))}
    records: list[Record] = []
    for suite, methods in METHODS.items():
        for network, own in places.items():
            for method in methods:
                for place in own:
                    off = 0.01 if method == "unfused" else -0.02
                    records += measured(Cell(suite, network, method, *place), off=off)
                every = [(workers, gbit) for workers in (2, 4, 8, 16, 64, 256, 512, 1024) for gbit in SCALES]
                records += [predicted(Cell(suite, network, method, *place)) for place in every]
            for place in own:
                records += alone(Cell(suite, network, "unfused", *place))
    for system, over in (("torch-ddp(bucket_mb=0.5)", 1.02), ("horovod(cycle_s=0.005)", 1.06)):
        cell = Cell("fusion", "resnet50", next(iter(FUSION)), 8, 10.0)
        buckets = replace(cell, method=list(FUSION)[1])
        records += [record(cell, repeat, buckets.step_s * over, system=system) for repeat in range(10)]
    return records
