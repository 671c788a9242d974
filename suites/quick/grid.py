"""The suite `quick`: which optimisation pays at 200 Mbit/s, and does taking turns pay beside it?

Three groups of cells (README.md says how to read them):
real     2 hosts, real compute, ResNet-20 on digits and BERT-tiny on text, every strategy and system
replay   4 hosts, replayed ResNet-50 and BERT-base, links that stand for 10 Gbit/s
sharing  2 hosts, two jobs a host: exclusive, naive, crossover; one pair identical, one not
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fabric.api import FabricSpec
from harness.trial import Job, Sharing, Trial
from models.workload import Device, WorkloadSpec
from suites.api import Options, Suite, interleave, with_data

RATE_BPS = 200e6
CYCLE = "cycle_s=0.005"
STRATEGIES = (
    "fixed-buckets",
    "unfused",
    f"tensor-fusion({CYCLE})",
    f"tensor-fusion({CYCLE})+half",
    "fixed-buckets+topk(density=0.01)+error-feedback",
)
SYSTEMS = (
    "torch-ddp",
    f"horovod({CYCLE})",
    f"horovod({CYCLE}, fusion_threshold_bytes=0)",
    f"horovod({CYCLE}, fp16=True)",
    "local",
)
REPLAY_STRATEGIES = STRATEGIES
REPLAY_SYSTEMS = ("torch-ddp", f"horovod({CYCLE})", "local")
SHARINGS = (Sharing.EXCLUSIVE, Sharing.NAIVE, Sharing.CROSSOVER)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A workload with its optimizer and how many steps show it."""

    workload: WorkloadSpec
    optimizer: str
    num_steps: int


RESNET20 = Recipe(WorkloadSpec(network="resnet20", data="digits", batch_size=64), "sgd(lr=0.1)", 24)
BERT_TINY = Recipe(WorkloadSpec(network="bert_tiny", data="text", batch_size=16, dropout=0.0), "adam(lr=0.001)", 14)
REPLAYED = tuple(
    Recipe(WorkloadSpec(network=network, device=Device.REPLAY, size_scale=50), "sgd(lr=0.1)", 8)
    for network in ("resnet50", "bert_base")
)


def grid(options: Options) -> Sequence[Trial]:
    """All trials, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    cells = [*_real(options), *_replay(options), *_sharing(options)]
    if options.smoke:
        cells = [_shortened(cell) for cell in cells if _in_smoke(cell)]
    return interleave(cells, options.repeats or (1 if options.smoke else 3))


def _real(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    for recipe in (RESNET20, BERT_TINY):
        for job in _jobs(recipe, options, options.strategies or STRATEGIES, SYSTEMS):
            yield _trial("real", (job,), fabric, options, recipe, evaluate_every=max(1, recipe.num_steps // 2))


def _replay(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=4, rate_bps=RATE_BPS)
    for recipe in REPLAYED:
        for job in _jobs(recipe, options, options.strategies or REPLAY_STRATEGIES, REPLAY_SYSTEMS):
            yield _trial("replay", (job,), fabric, options, recipe)


def _sharing(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    large = replace(RESNET20, workload=replace(RESNET20.workload, batch_size=128), num_steps=16)
    pairs = (
        (_named("a", large, options), _named("b", large, options)),
        (_named("resnet", large, options), _named("bert", BERT_TINY, options)),
    )
    for jobs in pairs:
        for sharing in SHARINGS:
            costs = 6 if sharing is Sharing.EXCLUSIVE else 0
            yield _trial("sharing", jobs, fabric, options, large, sharing=sharing, num_cost_steps=costs)


def _jobs(recipe: Recipe, options: Options, strategies: Sequence[str], systems: Sequence[str]) -> Iterator[Job]:
    workload = recipe.workload
    if options.data_path and workload.device is not Device.REPLAY:
        workload = with_data(workload, options.data_path)
    for strategy in strategies:
        yield Job(name="job", workload=workload, strategy=strategy, optimizer=recipe.optimizer)
    for system in systems:
        yield Job(name="job", workload=workload, system=system, optimizer=recipe.optimizer)


def _named(name: str, recipe: Recipe, options: Options) -> Job:
    return Job(name=name, workload=recipe.workload, strategy="fixed-buckets", optimizer=recipe.optimizer)


def _trial(
    group: str,
    jobs: tuple[Job, ...],
    fabric: FabricSpec,
    options: Options,
    recipe: Recipe,
    *,
    evaluate_every: int = 0,
    sharing: Sharing = Sharing.NONE,
    num_cost_steps: int = 0,
) -> Trial:
    label = jobs[0].label if sharing is Sharing.NONE else sharing.value
    workloads = "+".join(job.workload.label for job in jobs)
    return Trial(
        suite="quick",
        cell=f"{group}/{workloads}/{label}",
        jobs=jobs,
        fabric=fabric,
        sharing=sharing,
        num_steps=options.num_steps or recipe.num_steps,
        evaluate_every=evaluate_every,
        num_cost_steps=num_cost_steps,
        seed=options.seed,
        trace=options.trace,
    )


def _in_smoke(cell: Trial) -> bool:
    """One cell of each kind: two strategies, DDP, Horovod, one replay, the identical pair."""
    group, workload, label = cell.cell.split("/", 2)
    if group == "sharing":
        return workload == "resnet20-digits+resnet20-digits"
    chosen = ("fixed-buckets", f"tensor-fusion({CYCLE})+half", "torch-ddp", f"horovod({CYCLE})")
    return label in (chosen if workload == "resnet20-digits" else chosen[:1])


def _shortened(cell: Trial) -> Trial:
    return replace(cell, num_steps=min(cell.num_steps, 5), num_warmup=2, num_cost_steps=min(cell.num_cost_steps, 2))


SUITE = Suite(
    name="quick",
    question="Which communication optimisation pays on a slow link, and does sharing in turns pay beside it?",
    grid=grid,
)
