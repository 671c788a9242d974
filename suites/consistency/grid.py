"""The suite `consistency`: what waiting for each other costs, and what not waiting costs.

Workers train on a virtual clock with real gradients (`harness/asynchrony`), so a run is exact, repeats by its seed on
one machine, and no other process disturbs its times. A step takes a fast worker 0.1 s; servers are behind one link
of 1 Gbit/s (`--rate` names another).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fabric.api import FabricKind, FabricSpec
from harness.asynchrony.cluster import Disturbances, VirtualCluster
from harness.trial import Trial
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.consistency.problems import NAME, problem_cells
from suites.recipes import RESNET20

COMPUTE_S, ALPHA_S, RATE_BPS = 0.1, 50e-6, 1e9
SLOWDOWN = 3.0  # of the straggler, as in the papers on SSP and DynSSP
POLICIES = ("bsp", "ssp(staleness=3)", "dynssp(staleness=3)", "dynssp(staleness=3, rule='constant')", "asp")
WORKERS, NUM_STEPS, EVERY, REPEATS = 4, 80, 4, 20
PROBLEM_REPEATS = 10
CLUSTERS = ("equal", "straggler", "jitter")
RECIPE = replace(RESNET20, workload=replace(RESNET20.workload, batch_size=16, num_evaluation=180))


def cluster_of(name: str, num_workers: int, rate_bps: float | None = RATE_BPS) -> VirtualCluster:
    """The cluster called `name`: all alike, the last worker three times as slow, or steps of varying length. Without
    `rate_bps` bytes take no time."""
    disturbances = {
        "equal": Disturbances(),
        "straggler": Disturbances(slowdowns=(*(1.0 for _ in range(num_workers - 1)), SLOWDOWN)),
        "jitter": Disturbances(jitter=0.5, pause_probability=0.05, pause_s=5 * COMPUTE_S),
    }[name]
    return VirtualCluster(
        num_workers=num_workers,
        compute_s=COMPUTE_S,
        alpha_s=ALPHA_S,
        beta_s_per_byte=8 / rate_bps if rate_bps else 0.0,
        disturbances=disturbances,
    )


def grid(options: Options) -> Sequence[Trial]:
    """Every policy on every cluster, and the papers' own problems, seeds in turn."""
    num_workers = options.num_hosts or WORKERS
    policies = options.strategies or (POLICIES[:2] if options.smoke else POLICIES)
    cells = [
        _trial(name, policy, num_workers, options)
        for name in (CLUSTERS[1:2] if options.smoke else CLUSTERS)
        for policy in policies
    ]
    # They have no strategies, hosts or steps to choose.
    problems = [] if options.strategies or options.num_hosts else problem_cells(options.seed)
    return [
        *interleave(cells, options.num_repeats(REPEATS)),
        *interleave(problems[-2:] if options.smoke else problems, options.num_repeats(PROBLEM_REPEATS)),
    ]


def _trial(name: str, policy: str, num_workers: int, options: Options) -> Trial:
    job = replace(RECIPE.job(strategy=policy), role=Role.DENSE if policy == "bsp" else Role.METHOD)
    num_steps = options.num_steps or (8 if options.smoke else NUM_STEPS)
    rate_bps = options.rate_or(RATE_BPS)
    return Trial(
        suite=NAME,
        cell=f"{name}/{job.workload.label}/{policy}",
        jobs=(job,),
        fabric=FabricSpec(kind=FabricKind.LOCKSTEP, num_hosts=num_workers, rate_bps=rate_bps, alpha_s=ALPHA_S),
        cluster=cluster_of(name, num_workers, rate_bps),
        num_warmup=1,
        num_steps=max(1, num_steps - 1),
        evaluate_every=2 if options.smoke else EVERY,
        seed=options.seed,
        timeout_s=600.0,
    )


SUITE = Suite(
    name=NAME,
    question="Who reaches the target first when workers are unequal: those that wait, or those that do not?",
    grid=grid,
    fabric=FabricKind.LOCKSTEP,
)
