"""The suite `crossover`: two jobs a host in turns, against the bound from each job measured alone.

Two hosts, real compute. Pairs: identical and heterogeneous jobs; strategies: one message after
backward (no overlap inside a job) and small buckets sent during backward (wait-free
backpropagation). Sharings: exclusive (the denominator, and the source of c, m, t), hold, naive,
crossover.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.trial import Sharing, Trial
from suites.api import Options, Suite, interleave
from suites.recipes import BERT_TINY, RATE_BPS, RESNET20_LARGE, trial

STRATEGIES = {
    "no-overlap": "single-bucket",
    "overlap": "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)",
}
SHARINGS = (Sharing.EXCLUSIVE, Sharing.HOLD, Sharing.NAIVE, Sharing.CROSSOVER)


def grid(options: Options) -> Sequence[Trial]:
    """Every pair, strategy and sharing; exclusive first, since its costs predict the others."""
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    cells = []
    for group, strategy in STRATEGIES.items():
        pairs = (
            (RESNET20_LARGE.job("a", strategy=strategy), RESNET20_LARGE.job("b", strategy=strategy)),
            (RESNET20_LARGE.job("resnet", strategy=strategy), BERT_TINY.job("bert", strategy=strategy)),
        )
        for jobs in pairs[: 1 if options.smoke else 2]:
            for sharing in SHARINGS:
                costs = 8 if sharing is Sharing.EXCLUSIVE else 0
                cells.append(
                    trial(
                        "crossover", group, jobs, fabric, options, num_steps=24, sharing=sharing, num_cost_steps=costs
                    )
                )
    return interleave(cells, options.repeats or (1 if options.smoke else 5))


SUITE = Suite(
    name="crossover",
    question="Does sharing in turns reach what the theory allows, with and without overlap inside a job?",
    grid=grid,
)
