"""The suite `quick`: which optimisation pays, and does taking turns pay beside it?

Three groups of cells (README.md says how to read them), six repeats within seven minutes:
real     2 emulated hosts at 200 Mbit/s, real compute, ResNet-20 on digits and BERT-tiny on text
replay   8 workers on a modelled link of 25 or 100 Gbit/s, replayed ResNet-50 and BERT-base
sharing  two jobs a host: exclusive, naive, crossover; one pair computes on 2 emulated hosts, one is replayed among 8
Ours and torch DDP have the same sizes of buckets to choose from, and every size is a cell: an equal search, recorded.
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
from suites.recipes import BERT_TINY, CYCLE, RATE_BPS, RESNET20, RESNET20_LARGE, Recipe, trial
from suites.scaling import Scene, Wire, buckets, replay_place

# Buckets in MiB, of ours and of torch DDP alike; the first is torch DDP's default
REAL_BUCKETS = (25.0, 0.25)
REPLAY_BUCKETS = (25.0, 6.0)
REAL = (
    *(buckets(mib, min(mib, 1.0)) for mib in REAL_BUCKETS),
    f"{buckets(0.25, 0.25)}+half",
    "fixed-buckets+topk(density=0.01)+error-feedback",
)
REAL_SYSTEMS = (*(f"torch-ddp(bucket_mb={mib:g})" for mib in REAL_BUCKETS), f"horovod({CYCLE})", "local")
SMALL_BERT = replace(BERT_TINY, workload=replace(BERT_TINY.workload, batch_size=8))
FEW, FEW_SYSTEMS = ("fixed-buckets",), ("torch-ddp",)  # of the second network, to see whether the first misleads
DDP = tuple(f"torch-ddp(bucket_mb={mib:g})" for mib in REPLAY_BUCKETS)
OURS = tuple(buckets(mib) for mib in REPLAY_BUCKETS)
SCENES = (
    Scene(
        network="resnet50",
        batch_size=16,
        num_workers=8,
        gbit=25.0,
        strategies=OURS,
        systems=(*DDP, "local"),
        num_steps=20,
    ),
    Scene(
        network="bert_base",
        batch_size=4,
        num_workers=8,
        gbit=100.0,
        strategies=OURS[1:],
        systems=DDP[1:],
        num_steps=20,
    ),
)
SHARINGS = (Sharing.EXCLUSIVE, Sharing.NAIVE, Sharing.CROSSOVER)
PAIR = (("resnet50", 32), ("vgg16", 8))  # one computes for longer than it sends, the other sends for longer
PAIR_GBIT, PAIR_WORKERS = 100.0, 8
WARMUP, NUM_STEPS, SHARED_STEPS, COST_STEPS = 2, 20, 8, 4
BUDGET_S = 420.0  # six repeats at about three seconds per trial


def grid(options: Options) -> Sequence[Trial]:
    """All trials, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    cells = [*_real(options), *_replay(options), *_sharing(options)]
    if options.smoke:
        cells = [_shortened(cell) for cell in cells if _in_smoke(cell, options)]
    return interleave(cells, options.num_repeats())


def _real(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    for recipe, strategies, systems in ((RESNET20, REAL, REAL_SYSTEMS), (SMALL_BERT, FEW, FEW_SYSTEMS)):
        for job in _jobs(recipe, options, strategies, systems):
            yield trial(
                "quick",
                "real",
                (job,),
                fabric,
                options,
                num_steps=NUM_STEPS,
                num_warmup=WARMUP,
                evaluate_every=(NUM_STEPS + WARMUP) // 2,
            )


def _jobs(recipe: Recipe, options: Options, strategies: Sequence[str], systems: Sequence[str]) -> Iterator[Job]:
    on_data = with_data(recipe.workload, options.data_path)
    recipe = replace(recipe, workload=replace(on_data, device=options.device))
    for strategy in options.strategies or strategies:
        yield recipe.job(strategy=strategy)
    for system in systems:
        yield recipe.job(system=system)


def _replay(options: Options) -> Iterator[Trial]:
    for scene in SCENES:
        yield from scene.cells("quick", options)


def _sharing(options: Options) -> Iterator[Trial]:
    real = jobs_with_data((RESNET20_LARGE.job("a"), RESNET20_LARGE.job("b")), options.data_path)
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    yield from _ways(real, fabric, options)
    modelled, size_scale = replay_place(options, num_workers=PAIR_WORKERS, gbit=PAIR_GBIT, wire=Wire.MODELLED)
    replayed = tuple(
        Job(
            name=network,
            workload=WorkloadSpec(network=network, device=Device.REPLAY, batch_size=batch_size, size_scale=size_scale),
            strategy=scaled(buckets(6.0), size_scale),
            optimizer="sgd(lr=0.1)",
        )
        for network, batch_size in PAIR
    )
    yield from _ways(replayed, modelled, options)


def _ways(jobs: tuple[Job, ...], fabric: FabricSpec, options: Options) -> Iterator[Trial]:
    for sharing in SHARINGS:
        yield trial(
            "quick",
            "sharing",
            jobs,
            fabric,
            options,
            num_steps=SHARED_STEPS,
            sharing=sharing,
            num_cost_steps=COST_STEPS if sharing is Sharing.EXCLUSIVE else 0,
        )


def _in_smoke(cell: Trial, options: Options) -> bool:
    """One cell of each kind: two strategies (or those asked for), DDP, Horovod, one replay, the identical pair."""
    group, workload, label = cell.cell.split("/", 2)
    if group == "sharing":
        return all(job.workload.device is not Device.REPLAY for job in cell.jobs)
    if options.strategies and cell.jobs[0].strategy in options.strategies:
        return workload.startswith("resnet20-")
    if workload.startswith("resnet20-"):
        return label in (REAL[0], REAL[2], REAL_SYSTEMS[0], f"horovod({CYCLE})")
    return workload.startswith("resnet50-") and cell.jobs[0].system == "ours" and label.startswith("fixed-buckets")


def _shortened(cell: Trial) -> Trial:
    return replace(cell, num_steps=min(cell.num_steps, 5), num_warmup=2, num_cost_steps=min(cell.num_cost_steps, 2))


SUITE = Suite(
    name="quick",
    question="Which communication optimisation pays on a slow link, and does sharing in turns pay beside it?",
    grid=grid,
    budget_s=BUDGET_S,
)
