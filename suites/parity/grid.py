"""The suite `parity`: our engine beside the systems whose rules it follows, interleaved.

fixed buckets beside torch DDP      the same layout, the same weights bit for bit
tensor fusion beside Horovod        the same threshold and cycle
each at 200 Mbit/s and on unshaped links, two hosts with real compute. Ten repeats: the ratio of
paired repeats with its interval is the answer (`--repeats 20` for a narrower one).
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.trial import Trial
from suites.api import Options, Suite, interleave
from suites.recipes import BERT_TINY, CYCLE, RATE_BPS, RESNET20, trial

PAIRS = (
    {"strategy": "fixed-buckets"},
    {"system": "torch-ddp"},
    {"strategy": f"tensor-fusion({CYCLE}, threshold_bytes=134217728)"},
    {"system": f"horovod({CYCLE}, fusion_threshold_bytes=134217728)"},
)


def grid(options: Options) -> Sequence[Trial]:
    """All four systems on both workloads and both links, repeats interleaved."""
    cells = []
    for group, rate_bps in (("shaped", RATE_BPS), ("unshaped", None)):
        fabric = options.fabric_spec(num_hosts=2, rate_bps=rate_bps)
        for recipe in (RESNET20, BERT_TINY)[: 1 if options.smoke else 2]:
            for settings in PAIRS:
                cells.append(trial("parity", group, (recipe.job(**settings),), fabric, options, num_steps=20))
    return interleave(cells, options.num_repeats(10))


SUITE = Suite(
    name="parity",
    question="Are our strategies as fast as the systems whose rules they follow, and equal bit for bit?",
    grid=grid,
)
