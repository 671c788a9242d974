"""The suite `quick`: which optimisation pays, and does taking turns pay beside it?

Three groups of cells (README.md says how to read them), six repeats within five minutes:
real     2 emulated hosts at 200 Mbit/s, real compute: ResNet-20 on digits, or BERT-tiny if `--data` is text
replay   4 workers on a modelled link of 100 Gbit/s with VGG-16, 8 on one of 25 Gbit/s with ResNet-50: layer profiles
sharing  two jobs a host: one pair computes on 2 emulated hosts, one is replayed among 8 and runs naively as well
torch DDP has every bucket size that ours have, its first bucket as large, and its default size; each is a cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from crossover import Sharing
from fabric.api import FabricSpec
from harness.sizes import scaled
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from suites.api import Options, Suite, interleave
from suites.data import jobs_with_data, with_data
from suites.recipes import BERT_TINY, CYCLE, RATE_BPS, RESNET20, RESNET20_LARGE, Recipe, evaluated_every, trial
from suites.scaling import Scene, Wire, buckets, replay_place

DDP_MIB = 25.0  # torch DDP's default
REAL_MIB, REPLAY_MIB = 0.25, 6.0
REAL = (
    buckets(REAL_MIB, REAL_MIB),
    f"{buckets(REAL_MIB, REAL_MIB)}+half",
    "fixed-buckets+topk(density=0.01)+error-feedback",
)
REAL_SYSTEMS = (*(f"torch-ddp(bucket_mb={mib:g})" for mib in (DDP_MIB, REAL_MIB)), f"horovod({CYCLE})", "local")
REAL_NETWORKS = (RESNET20, replace(BERT_TINY, workload=replace(BERT_TINY.workload, batch_size=8)))
DDP = tuple(f"torch-ddp(bucket_mb={mib:g})" for mib in (DDP_MIB, REPLAY_MIB))
EAGER = "unfused+at-pre-hook"  # each tensor on its own, waited for where the next step's forward pass needs it
SCENES = (
    Scene(  # most of it in one tensor, whose gradient comes first
        network="vgg16",
        batch_size=16,
        num_workers=4,
        gbit=100.0,
        strategies=(EAGER,),
        systems=(*DDP, "local"),
        num_steps=20,
    ),
    Scene(  # many small tensors
        network="resnet50",
        batch_size=16,
        num_workers=8,
        gbit=25.0,
        strategies=(EAGER,),
        systems=DDP,
        num_steps=20,
    ),
)
TURNS = (Sharing.EXCLUSIVE, Sharing.CROSSOVER)
PAIR = (("resnet50", 32), ("vgg16", 8))  # one computes for longer than it sends, the other sends for longer
PAIR_GBIT, PAIR_WORKERS = 100.0, 8
WARMUP, NUM_STEPS, SHARED_STEPS, COST_STEPS = 2, 20, 8, 4
BUDGET_S = 300.0  # six repeats of nineteen cells at about two and a half seconds per trial


def grid(options: Options) -> Sequence[Trial]:
    """All trials, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    cells = [*_real(options), *_replay(options), *_sharing(options)]
    if options.smoke:
        cells = [_shortened(cell, options) for cell in cells if _in_smoke(cell, options)]
    return interleave(cells, options.num_repeats())


def _real(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    recipe = _real_network(options)
    jobs = [recipe.job(strategy=strategy) for strategy in options.strategies or REAL]
    for job in (*jobs, *(recipe.job(system=system) for system in REAL_SYSTEMS)):
        yield trial(
            "quick",
            "real",
            (job,),
            fabric,
            options,
            num_steps=NUM_STEPS,
            num_warmup=WARMUP,
            evaluate_every=evaluated_every(job, NUM_STEPS + WARMUP, 2),
        )


def _real_network(options: Options) -> Recipe:
    """The first network that can train on the user's data, or the first of all; on that data."""
    on_data = [
        replace(recipe, workload=replace(with_data(recipe.workload, options), device=options.device))
        for recipe in REAL_NETWORKS
    ]
    return next((recipe for recipe in on_data if recipe.workload.data_path), on_data[0])


def _replay(options: Options) -> Iterator[Trial]:
    for scene in SCENES:
        yield from scene.cells("quick", options)


def _sharing(options: Options) -> Iterator[Trial]:
    real = jobs_with_data((RESNET20_LARGE.job("a"), RESNET20_LARGE.job("b")), options)
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    yield from _ways(real, TURNS, fabric, options)
    modelled, size_scale = replay_place(options, num_workers=PAIR_WORKERS, gbit=PAIR_GBIT, wire=Wire.MODELLED)
    replayed = tuple(
        Job(
            name=network,
            workload=WorkloadSpec(network=network, device=Device.REPLAY, batch_size=batch_size, size_scale=size_scale),
            strategy=scaled(buckets(REPLAY_MIB), size_scale),
            optimizer="sgd(lr=0.1)",
        )
        for network, batch_size in PAIR
    )
    yield from _ways(replayed, (Sharing.NAIVE, *TURNS), modelled, options)


def _ways(jobs: tuple[Job, ...], sharings: Sequence[Sharing], fabric: FabricSpec, options: Options) -> Iterator[Trial]:
    for sharing in sharings:
        yield trial(
            "quick",
            "sharing",
            jobs,
            fabric,
            options,
            num_steps=SHARED_STEPS,
            num_warmup=WARMUP,
            sharing=sharing,
            num_cost_steps=COST_STEPS if sharing is Sharing.EXCLUSIVE else 0,
        )


def _in_smoke(cell: Trial, options: Options) -> bool:
    """One cell of each kind: two strategies (or those asked for), DDP with every bucket (the fastest is the baseline),
    Horovod, one replay, the identical pair."""
    group, workload, label = cell.cell.split("/", 2)
    if group == "sharing":
        return all(job.workload.device is not Device.REPLAY for job in cell.jobs)
    if group == "real":
        asked_for = bool(options.strategies) and cell.jobs[0].strategy in options.strategies
        return asked_for or label in (*REAL[:2], *REAL_SYSTEMS[:-1])
    return workload.startswith("vgg16-") and cell.jobs[0].system == "ours"


def _shortened(cell: Trial, options: Options) -> Trial:
    """Briefly, except for a number of steps that was asked for."""
    num_steps = options.num_steps or min(cell.num_steps, 5)
    return replace(cell, num_steps=num_steps, num_warmup=2, num_cost_steps=min(cell.num_cost_steps, 2))


SUITE = Suite(
    name="quick",
    question="Which communication optimisation pays on a slow link, and does sharing in turns pay beside it?",
    grid=grid,
    budget_s=BUDGET_S,
)
