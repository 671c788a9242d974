"""The suite `gpu`: ResNet-50 and BERT-base on one GPU, with the link time of a cluster of such GPUs.

One rank of each job is real. It pays the time that a ring of eight ranks would take on a link which both jobs share
(`fabric.paced`), so compute, memory and hand-overs are a GPU's own and the network is a model. Each job also runs by
itself: on that link, and as the one rank of a group of NCCL, where nothing travels and what is left is what the engine
and DDP cost on a GPU. With `--smoke` on the CPU the same grid runs on tiny networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crossover import ReleasePoint, Sharing
from fabric.api import FabricKind, FabricSpec
from harness.precision import Precision
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from suites.api import Options, Suite, interleave
from suites.data import jobs_with_data
from suites.recipes import trial

NUM_RANKS = 8
ALPHA_S = 20e-6
SYSTEMS = ("ours", "torch-ddp")
PRECISIONS = (Precision.FLOAT32, Precision.BFLOAT16)
SHARINGS = {
    ReleasePoint.EVENT: (Sharing.HOLD, Sharing.NAIVE, Sharing.CROSSOVER),
    ReleasePoint.LAUNCH: (Sharing.CROSSOVER,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuScene:
    """Two jobs, the rates at which they share a link, and how many steps show it."""

    workloads: tuple[WorkloadSpec, WorkloadSpec]
    rates_bps: tuple[float | None, ...]
    strategy: str
    num_steps: int
    num_cost_steps: int
    num_warmup: int

    def jobs(self, precision: Precision) -> tuple[Job, ...]:
        """A convolutional job and a language model, in turn order."""
        vision, language = self.workloads
        jobs = (
            Job(name="vision", workload=vision, strategy=self.strategy, optimizer="sgd(lr=0.05)"),
            Job(name="language", workload=language, strategy=self.strategy, optimizer="adam(lr=0.0001)"),
        )
        return tuple(replace(job, precision=precision) for job in jobs)


GPU = GpuScene(
    workloads=(
        WorkloadSpec(network="resnet50", data="synthetic", batch_size=64, device=Device.CUDA),
        WorkloadSpec(
            network="bert_base",
            data="synthetic",
            batch_size=32,
            sequence_length=128,
            dropout=0.0,
            device=Device.CUDA,
        ),
    ),
    rates_bps=(25e9, 100e9, 400e9),
    strategy="fixed-buckets",
    num_steps=24,
    num_cost_steps=8,
    num_warmup=5,
)
TINY = GpuScene(
    workloads=(
        WorkloadSpec(network="resnet20", data="digits", batch_size=16),
        WorkloadSpec(network="bert_tiny", data="text", batch_size=8, dropout=0.0),
    ),
    rates_bps=(1e9,),
    strategy="fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)",
    num_steps=4,
    num_cost_steps=3,
    num_warmup=2,
)


def grid(options: Options) -> Sequence[Trial]:
    """Every precision, rate and moment of release; in each the exclusive trial first. Raises: FabricError."""
    on_cpu = options.smoke and options.device is Device.CPU
    scene = TINY if on_cpu else GPU
    if options.smoke and not on_cpu:
        scene = replace(scene, rates_bps=scene.rates_bps[1:2], num_steps=6, num_cost_steps=3, num_warmup=3)
    if options.rate_given:
        scene = replace(scene, rates_bps=(options.rate_bps,))
    cells = [
        cell
        for precision in PRECISIONS
        for rate in scene.rates_bps
        for cell in _pairs(scene, precision, _link(rate, options), options)
    ]
    for rate in scene.rates_bps:
        cells += _alone(scene, "alone", _link(rate, options), options)
    cells += _alone(scene, "one-rank", FabricSpec(kind=FabricKind.NATIVE, num_hosts=1, rate_bps=None), options)
    return interleave(cells, options.num_repeats())


def _link(rate_bps: float | None, options: Options) -> FabricSpec:
    return FabricSpec(
        kind=FabricKind.PACED,
        num_hosts=1,
        num_virtual=options.num_hosts or NUM_RANKS,
        alpha_s=ALPHA_S,
        rate_bps=rate_bps,
    )


def _swept(group: str, rate_bps: float | None) -> dict[str, Any]:
    """A group's name and its place on the axis of rates."""
    if rate_bps is None:
        return {"group": group}
    gbit = rate_bps / 1e9
    return {"group": f"{group}-{gbit:g}", "axis": "Gbit/s", "at": gbit}


def _alone(scene: GpuScene, group: str, fabric: FabricSpec, options: Options) -> Iterator[Trial]:
    """Each job by itself, by the engine and by DDP with its own buckets."""
    for job in jobs_with_data(scene.jobs(Precision.FLOAT32), options):
        for system in SYSTEMS:
            yield trial(
                "gpu",
                jobs=(replace(job, system=system),),
                fabric=fabric,
                options=options,
                num_steps=scene.num_steps,
                num_warmup=scene.num_warmup,
                **_swept(group, fabric.rate_bps),
            )


def _pairs(scene: GpuScene, precision: Precision, fabric: FabricSpec, options: Options) -> Iterator[Trial]:
    """Both jobs in every way of sharing, the exclusive trial first."""
    for release, sharings in SHARINGS.items():
        group = str(release) if precision is Precision.FLOAT32 else f"{release}-{precision}"
        for sharing in (Sharing.EXCLUSIVE, *sharings):
            base = trial(
                "gpu",
                jobs=jobs_with_data(scene.jobs(precision), options),
                fabric=fabric,
                options=options,
                num_steps=scene.num_steps,
                num_warmup=scene.num_warmup,
                sharing=sharing,
                num_cost_steps=scene.num_cost_steps if sharing is Sharing.EXCLUSIVE else 0,
                **_swept(group, fabric.rate_bps),
            )
            yield replace(base, release=release)


SUITE = Suite(
    name="gpu",
    question="On one real GPU, what do two jobs gain from turns, and what does a hand-over cost?",
    grid=grid,
    fabric=FabricKind.PACED,  # it counts virtual peers
)
