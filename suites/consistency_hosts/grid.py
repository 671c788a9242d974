"""The suite `consistency-hosts`: workers and a server as processes, beside what the virtual clock says of them.

The methods and clusters of `consistency`, four workers and one server, real gradients and real sockets. A step takes a
fast worker 0.4 s, most of it waiting, so that more workers than cores do not slow each other. README.md says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fabric.api import FabricKind
from harness.asynchrony.cluster import OnLoss
from harness.trial import Trial
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.consistency.grid import ALPHA_S, cluster_of
from suites.recipes import RESNET20

NAME = "consistency-hosts"
COMPUTE_S, RATE_BPS, WORKERS, NUM_STEPS, REPEATS = 0.4, 200e6, 4, 12, 3
POLICIES = ("bsp", "ssp(staleness=3)", "asp")
CLUSTERS = ("equal", "straggler")
RECIPE = replace(RESNET20, workload=replace(RESNET20.workload, batch_size=4, num_evaluation=64))


def grid(options: Options) -> Sequence[Trial]:
    """Every policy on every cluster; `--hosts` counts the workers and the server."""
    policies = options.strategies or (POLICIES[1:2] if options.smoke else POLICIES)
    clusters = CLUSTERS[1:] if options.smoke else CLUSTERS
    cells = [_trial(name, policy, options) for name in clusters for policy in policies]
    return interleave(cells, options.repeats or (1 if options.smoke else REPEATS))


def _trial(name: str, policy: str, options: Options) -> Trial:
    spec = options.fabric_spec(num_hosts=WORKERS + 1, rate_bps=RATE_BPS)
    if spec.kind is FabricKind.PACED:
        spec = replace(spec, alpha_s=ALPHA_S)
    cluster = replace(cluster_of(name, spec.num_hosts - 1, spec.rate_bps or RATE_BPS), compute_s=COMPUTE_S)
    job = replace(RECIPE.job(strategy=policy), role=Role.DENSE if policy == "bsp" else Role.METHOD)
    return Trial(
        suite=NAME,
        cell=f"{name}/{job.workload.label}/{policy}",
        jobs=(job,),
        fabric=spec,
        cluster=cluster,
        on_loss=options.on_loss or OnLoss.STOP,
        num_warmup=2,
        num_steps=options.num_steps or (4 if options.smoke else NUM_STEPS),
        evaluate_every=1,
        seed=options.seed,
        timeout_s=300.0,
    )


SUITE = Suite(
    name=NAME,
    question="Do workers as processes step as the virtual clock says?",
    grid=grid,
)
