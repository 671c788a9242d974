"""The suite `fusion`: which gradients should travel together, and can that be known beforehand?

Replayed networks among 8 to 64 workers on modelled links of 5 to 100 Gbit/s, under every packing, torch DDP and
DeepSpeed; Horovod and validation on 2 and 4 emulated hosts; real training on 2 hosts; and a grid of six networks up to
1,024 workers that is predicted only. Sizes are written as they are on a real cluster and divided by the size scale of
the cell (`suites.scaling`, README.md beside this file).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.trial import Trial
from suites.api import Options, Suite, interleave
from suites.recipes import BERT_TINY, CYCLE, RESNET20_LARGE
from suites.scaling import LINKS, MIB, Scene, Wire, buckets, distinct, shortened, trained


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
ON_SOCKETS = (DEFAULT, fusion(), "mg-wfbp")
SCENES = (
    Scene(
        network="resnet50",
        batch_size=64,
        num_workers=8,
        gbit=10.0,
        strategies=EVERY,
        systems=(*DDP, DEEPSPEED, "local"),
    ),
    *(
        Scene(
            network="resnet50",
            batch_size=64,
            num_workers=8,
            gbit=gbit,
            strategies=("unfused", *MERGED),
            systems=("local",),
        )
        for gbit in (5.0, 25.0, 100.0)
    ),
    *(
        Scene(
            network="resnet50",
            batch_size=64,
            num_workers=number,
            gbit=25.0,
            strategies=("unfused", *MERGED),
            systems=(DDP[2], "local"),
        )
        for number in (16, 64)
    ),
    *(
        Scene(
            network=network,
            batch_size=batch_size,
            num_workers=8,
            gbit=25.0,
            strategies=(*MERGED, "optimal-merge"),
            systems=(DDP[2], "local"),
        )
        for network, batch_size in (("vgg16", 32), ("bert_base", 8), ("gpt2", 8))
    ),
    # Real sockets: what Horovod needs, and what the modelled link and the predictor are validated with.
    Scene(
        network="resnet50",
        batch_size=64,
        num_workers=4,
        gbit=10.0,
        strategies=ON_SOCKETS,
        systems=(*DDP[1:3], *HOROVOD, "local"),
        wire=Wire.SOCKETS,
    ),
    Scene(
        network="resnet50",
        batch_size=64,
        num_workers=2,
        gbit=10.0,
        strategies=ON_SOCKETS,
        systems=(HOROVOD[0], "local"),
        wire=Wire.SOCKETS,
    ),
)
PREDICTED_NETWORKS = {
    "resnet50": 64,
    "resnet101": 64,
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
        return [shortened(cell, options) for cell in cells]
    replayed = (cell for scene in SCENES for cell in scene.cells("fusion", options))
    return interleave(distinct([*replayed, *_real_cells(options)]), options.num_repeats())


def predicted(options: Options) -> Sequence[Trial]:
    """The whole grid, for the predictor alone: every network and link under every packing, on eight hosts."""
    return distinct(
        cell
        for network, batch_size in PREDICTED_NETWORKS.items()
        for gbit in LINKS
        for cell in Scene(
            network=network, batch_size=batch_size, num_workers=PREDICTED_HOSTS, gbit=gbit, strategies=EVERY
        ).cells("fusion", options)
    )


def _smoke() -> Scene:
    systems = (DDP[1], HOROVOD[0], "local")
    return Scene(network="resnet50", batch_size=64, num_workers=2, gbit=25.0, strategies=EVERY, systems=systems)


def _real_cells(options: Options) -> Iterator[Trial]:
    for recipe in (RESNET20_LARGE, BERT_TINY):
        yield from trained("fusion", recipe, REAL, REAL_SYSTEMS, options)


SUITE = Suite(
    name="fusion",
    question="Which gradients should travel together, on which link, and can that be predicted?",
    grid=grid,
    predicted=predicted,
    predicted_worlds=PREDICTED_WORLDS,
    budget_s=2700.0,
)
