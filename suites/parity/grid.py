"""The suite `parity`: our engine beside the systems whose rules it follows, interleaved.

fixed buckets beside torch DDP      the same buckets, of 25 (the first one of 1), 1 and 0.25 MiB; the same weights bit
                                    for bit
tensor fusion beside Horovod        the same threshold and cycle
each at 200 Mbit/s, at 1 Gbit/s and on unshaped links, two hosts with real compute on small batches, so that what an
engine costs is not hidden. Ten repeats: the ratio of paired repeats with its interval is the answer (`--repeats 20`
for a narrower one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.trial import Trial
from suites.api import Options, Suite, interleave
from suites.recipes import BERT_TINY, CYCLE, RATE_BPS, RESNET20, trial
from suites.scaling import buckets

# Without a size DDP takes 25 MiB after a first bucket of 1 MiB; its first bucket is as large as any size it is given.
BUCKETS = (
    (buckets(25, 1), "torch-ddp"),
    *((buckets(mib, mib), f"torch-ddp(bucket_mb={mib})") for mib in (1, 0.25)),
)
FUSION = (
    f"tensor-fusion({CYCLE}, threshold_bytes=134217728)",
    f"horovod({CYCLE}, fusion_threshold_bytes=134217728)",
)
LINKS = (("shaped", RATE_BPS), ("shaped-1gbit", 1e9), ("unshaped", None))
BATCH_SIZE = 4
RECIPES = tuple(
    replace(recipe, workload=replace(recipe.workload, batch_size=BATCH_SIZE)) for recipe in (RESNET20, BERT_TINY)
)


def grid(options: Options) -> Sequence[Trial]:
    """All pairs on both workloads and every link, repeats interleaved."""
    cells = []
    for group, rate_bps in LINKS:
        fabric = options.fabric_spec(num_hosts=2, rate_bps=rate_bps)
        for recipe in RECIPES[: 1 if options.smoke else 2]:
            for strategy, system in (*BUCKETS, FUSION):
                for job in (recipe.job(strategy=strategy), recipe.job(system=system)):
                    cells.append(trial("parity", group, (job,), fabric, options, num_steps=30))
    return interleave(cells, options.num_repeats(10))


SUITE = Suite(
    name="parity",
    question="Are our strategies as fast as the systems whose rules they follow, and equal bit for bit?",
    grid=grid,
)
