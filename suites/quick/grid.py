"""The suite `quick`: which optimisation pays at 200 Mbit/s, and does taking turns pay beside it?

Three groups of cells (README.md says how to read them):
real     2 hosts, real compute, ResNet-20 on digits and BERT-tiny on text, every strategy and system
replay   4 hosts, replayed ResNet-50 and BERT-base, links that stand for 10 Gbit/s
sharing  2 hosts, two jobs a host: exclusive, naive, crossover; one pair identical, one not
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from crossover import Sharing
from harness.trial import Job, Trial
from models.workload import Device
from suites.api import Options, Suite, interleave
from suites.data import with_data
from suites.recipes import BERT_TINY, CYCLE, RATE_BPS, RESNET20, RESNET20_LARGE, Recipe, replayed, trial

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
REPLAYED = (  # BERT-base unfused takes 1.5 s a step and says what ResNet-50 unfused says
    (replayed("resnet50", num_steps=5), STRATEGIES),
    (replayed("bert_base", num_steps=3), tuple(strategy for strategy in STRATEGIES if strategy != "unfused")),
)
REPLAY_SYSTEMS = ("torch-ddp", f"horovod({CYCLE})", "local")
SHARINGS = (Sharing.EXCLUSIVE, Sharing.NAIVE, Sharing.CROSSOVER)
REPEATS = 3
WARMUP = 2


def grid(options: Options) -> Sequence[Trial]:
    """All trials, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    cells = [*_real(options), *_replay(options), *_sharing(options)]
    if options.smoke:
        cells = [_shortened(cell) for cell in cells if _in_smoke(cell, options)]
    return interleave(cells, options.repeats or (1 if options.smoke else REPEATS))


def _real(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    for recipe in (RESNET20, BERT_TINY):
        for job in _jobs(recipe, options, STRATEGIES, SYSTEMS):
            evaluate_every = (recipe.num_steps + WARMUP) // 2
            yield trial(
                "quick",
                "real",
                (job,),
                fabric,
                options,
                num_steps=recipe.num_steps,
                num_warmup=WARMUP,
                evaluate_every=evaluate_every,
            )


def _replay(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=4, rate_bps=RATE_BPS)
    for recipe, strategies in REPLAYED:
        for job in _jobs(recipe, options, strategies, REPLAY_SYSTEMS):
            yield trial("quick", "replay", (job,), fabric, options, num_steps=recipe.num_steps, num_warmup=WARMUP)


def _sharing(options: Options) -> Iterator[Trial]:
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    pairs = (
        (RESNET20_LARGE.job("a"), RESNET20_LARGE.job("b")),
        (RESNET20_LARGE.job("resnet"), BERT_TINY.job("bert")),
    )
    for jobs in pairs:
        for sharing in SHARINGS:
            costs = 6 if sharing is Sharing.EXCLUSIVE else 0
            steps = RESNET20_LARGE.num_steps
            yield trial(
                "quick", "sharing", jobs, fabric, options, num_steps=steps, sharing=sharing, num_cost_steps=costs
            )


def _jobs(recipe: Recipe, options: Options, strategies: Sequence[str], systems: Sequence[str]) -> Iterator[Job]:
    if recipe.workload.device is not Device.REPLAY:
        on_data = with_data(recipe.workload, options.data_path)
        recipe = replace(recipe, workload=replace(on_data, device=options.device))
    for strategy in options.strategies or strategies:
        yield recipe.job(strategy=strategy)
    for system in systems:
        yield recipe.job(system=system)


def _in_smoke(cell: Trial, options: Options) -> bool:
    """One cell of each kind: two strategies (or those asked for), DDP, Horovod, one replay, the identical pair."""
    group, workload, label = cell.cell.split("/", 2)
    if group == "sharing":
        return workload == "resnet20-digits+resnet20-digits"
    if options.strategies and cell.jobs[0].strategy in options.strategies:
        return workload.startswith("resnet20-")
    chosen = ("fixed-buckets", f"tensor-fusion({CYCLE})+half", "torch-ddp", f"horovod({CYCLE})")
    return label in (chosen if workload.startswith("resnet20-") else chosen[:1])


def _shortened(cell: Trial) -> Trial:
    return replace(cell, num_steps=min(cell.num_steps, 5), num_warmup=2, num_cost_steps=min(cell.num_cost_steps, 2))


SUITE = Suite(
    name="quick",
    question="Which communication optimisation pays on a slow link, and does sharing in turns pay beside it?",
    grid=grid,
)
