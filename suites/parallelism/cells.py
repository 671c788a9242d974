"""What all cells of the suite `parallelism` are made of."""

from __future__ import annotations

from fabric.api import FabricKind, FabricSpec
from harness.parallel.placement import Pipelining
from harness.trial import Job, Trial
from models.values import Device, WorkloadSpec
from results.facts import Role
from suites.api import Options

NAME = "parallelism"
ALPHA_S, RATE_BPS = 50e-6, 10e9
SIZE_SCALE = 50  # a link of 200 Mbit/s stands for 10 Gbit/s
# Of processes: a replayed layer's own arithmetic on larger tensors would outlast its time (4 ms of BERT-large's 63).
MEASURED_SCALE = 200
MICRO_BATCHES = 8


def replayed(network: str, batch_size: int = 16, *, size_scale: int = SIZE_SCALE) -> WorkloadSpec:
    """A micro-batch of `network` in replay."""
    return WorkloadSpec(network=network, device=Device.REPLAY, batch_size=batch_size, size_scale=size_scale)


def pipelined(
    group: str,
    workload: WorkloadSpec,
    asked: Pipelining,
    fabric: FabricSpec,
    options: Options,
    *,
    num_micro_batches: int = MICRO_BATCHES,
    num_steps: int = 5,
    system: str = "ours",
    label: str = "",
    role: Role = Role.METHOD,
    optimizer: str = "sgd(lr=0.05)",
) -> Trial:
    """One job, one cell: `group/workload/label`."""
    job = Job(
        name="job",
        workload=workload,
        system=system,
        accumulate=num_micro_batches,
        pipelining=asked,
        role=role,
        optimizer=optimizer,
    )
    return Trial(
        suite=NAME,
        cell=f"{group}/{workload.label}/{label or job.label}",
        jobs=(job,),
        fabric=fabric,
        num_warmup=2,
        num_steps=options.num_steps or num_steps,
        seed=options.seed,
        timeout_s=600.0,
        trace=options.trace and fabric.kind.has_processes,
    )


def on_paced(num_hosts: int, *, num_virtual: int = 0) -> FabricSpec:
    """Hosts on paced links; the rate is what the scaled tensors travel at."""
    return FabricSpec(
        kind=FabricKind.PACED,
        num_hosts=num_hosts,
        num_virtual=num_virtual,
        rate_bps=RATE_BPS / MEASURED_SCALE,
        alpha_s=ALPHA_S,
    )


def on_clock(num_hosts: int, rate_bps: float = RATE_BPS) -> FabricSpec:
    """Hosts of the virtual clock; the rate is what the scaled tensors travel at."""
    return FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=num_hosts, rate_bps=rate_bps / SIZE_SCALE, alpha_s=ALPHA_S)
