"""The suite `fusion`: which gradients should travel together, and can that be known beforehand?

Replayed networks on 2, 4 and 8 hosts, on links that stand for 5 to 100 Gbit/s, under every packing and real systems;
real training on 2 hosts; and a grid of six networks up to 1,024 workers that is predicted only. Sizes are written as
they are on a real cluster and divided by the size scale of the cell (`suites.scaling`, README.md beside this file).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from harness.trial import Trial
from suites.api import Options, Suite
from suites.recipes import BERT_TINY, CYCLE, RESNET20_LARGE
from suites.scaling import LINKS, Scene, by_repeat, distinct, shortened, trained

MIB = 1024 * 1024
MANY, FEW = 5, 3  # repeats: where a claim rests on the cell, and elsewhere


def buckets(mib: float, first_mib: float = 1.0) -> str:
    """Fixed buckets of so many MiB."""
    return f"fixed-buckets(bucket_bytes={round(mib * MIB)}, first_bucket_bytes={round(first_mib * MIB)})"


def fusion(mib: int = 128) -> str:
    """Tensor fusion with the cycle that Horovod is given too."""
    return f"tensor-fusion(threshold_bytes={mib * MIB}, {CYCLE})"


DEFAULT = buckets(25)  # torch DDP's
EVERY = ("unfused", buckets(2), buckets(6), DEFAULT, buckets(64), fusion(), "mg-wfbp", "optimal-merge")
MERGED = (DEFAULT, "mg-wfbp")
DDP = tuple(f"torch-ddp(bucket_mb={mib})" for mib in (2, 6, 25, 64))
HOROVOD = (
    f"horovod(fusion_threshold_bytes={128 * MIB}, {CYCLE})",
    f"horovod(fusion_threshold_bytes={16 * MIB}, {CYCLE})",
    "horovod(autotune=True, autotune_warmup=1, autotune_steps=1, autotune_samples=12)",
)
DEEPSPEED = "deepspeed(zero=0, bucket_mb=25)"
SYSTEMS = (*DDP, *HOROVOD, DEEPSPEED, "local")
SCENES = (
    # A batch of 128, since eight ranks share two cores: at 64 these, and not the link, decided the step.
    Scene(network="resnet50", batch_size=128, num_hosts=8, gbit=10.0, strategies=EVERY, systems=SYSTEMS, repeats=MANY),
    *(
        Scene(network="resnet50", batch_size=128, num_hosts=4, gbit=gbit, strategies=strategies, systems=("local",))
        for gbit, strategies in ((5.0, ("unfused", *MERGED)), (25.0, MERGED), (100.0, MERGED))
    ),
    Scene(network="vgg16", batch_size=32, num_hosts=4, gbit=25.0, strategies=MERGED, systems=(HOROVOD[0], "local")),
    Scene(
        network="bert_base",
        batch_size=8,
        num_hosts=2,
        gbit=10.0,
        strategies=(*MERGED, "optimal-merge"),
        systems=("local",),
    ),
    Scene(network="gpt2", batch_size=8, num_hosts=8, gbit=25.0, strategies=MERGED, systems=("local",)),
)
PREDICTED_NETWORKS = {
    "resnet50": 128,
    "resnet101": 128,
    "vgg16": 32,
    "bert_base": 8,
    "bert_large": 8,
    "gpt2": 8,
}
PREDICTED_HOSTS = 8
PREDICTED_WORLDS = (2, 4, 16, 64, 256, 512, 1024)  # beside these
REAL_BUCKETS = "fixed-buckets(bucket_bytes=262144, first_bucket_bytes=65536)"
REAL = ("unfused", REAL_BUCKETS, f"tensor-fusion({CYCLE})", "mg-wfbp", "optimal-merge")
REAL_SYSTEMS = ("torch-ddp(bucket_mb=0.25)", f"horovod({CYCLE})", "local")


def grid(options: Options) -> Sequence[Trial]:
    """What is measured, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    if options.smoke:
        cells = [*_smoke().cells("fusion", options), *trained("fusion", RESNET20_LARGE, ("mg-wfbp",), (), options)]
        return [shortened(cell) for cell in cells]
    replayed = [(partial(scene.cells, "fusion"), scene.repeats) for scene in SCENES]
    return by_repeat([*replayed, (_real_cells, FEW)], options)


def predicted(options: Options) -> Sequence[Trial]:
    """The whole grid, for the predictor alone: every network and link under every packing, on eight hosts."""
    return distinct(
        cell
        for network, batch_size in PREDICTED_NETWORKS.items()
        for gbit in LINKS
        for cell in Scene(
            network=network, batch_size=batch_size, num_hosts=PREDICTED_HOSTS, gbit=gbit, strategies=EVERY
        ).cells("fusion", options)
    )


def _smoke() -> Scene:
    systems = (DDP[1], HOROVOD[0], "local")
    return Scene(network="resnet50", batch_size=128, num_hosts=2, gbit=25.0, strategies=EVERY, systems=systems)


def _real_cells(options: Options) -> Iterator[Trial]:
    for recipe in (RESNET20_LARGE, BERT_TINY):
        yield from trained("fusion", recipe, REAL, REAL_SYSTEMS, options)


SUITE = Suite(
    name="fusion",
    question="Which gradients should travel together, on which link, and can that be predicted?",
    grid=grid,
    predicted=predicted,
    predicted_worlds=PREDICTED_WORLDS,
)
