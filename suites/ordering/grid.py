"""The suite `ordering`: which message should go first, and where does that pay?

Replayed networks among 2 to 64 workers under each ordering, on all-reduce, with updates after all messages or just
before a layer needs its own; real training on 2 hosts; and a grid up to 1,024 workers, parameter servers too, that is
predicted only. Sizes are those of a real cluster, divided by the size scale (`suites.scaling`, README.md beside this).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.trial import Trial
from suites.api import Options, Suite, interleave
from suites.recipes import BERT_TINY, RESNET20_LARGE
from suites.scaling import LINKS, Scene, Wire, distinct, shortened, trained
from suites.scaling import buckets as buckets_of

OVERLAP = "at-pre-hook"
SERVERS = "parameter-server"
LARGE = 2_000_000  # elements of a slice: 8 MB, the smallest partition that ByteScheduler searches
SMALL, VAST = 1_000_000, 8_000_000
PAPERS = 40_000  # P3's own


def joined(*parts: str) -> str:
    """A strategy text."""
    return "+".join(part for part in parts if part)


def slices(elements: int) -> str:
    """Slices of at most so many elements."""
    return f"slices(slice_elements={elements})"


def buckets(mib: int) -> str:
    """Fixed buckets of so many MiB, the first one too."""
    return buckets_of(mib, mib)


def in_turn(packing: str) -> str:
    """First in, first out with overlap, one message behind the other, as P3 and ByteScheduler have them."""
    return joined(packing, "fifo(one_by_one=True)", OVERLAP)


def bytescheduler(elements: int, *rest: str) -> str:
    """Partition, a credit of two partitions, and priority together."""
    return joined(slices(elements), f"bytescheduler(credit_bytes={2 * 4 * elements})", OVERLAP, *rest)


TUNED = bytescheduler(VAST, "bayesian(trials=12, steps=3)")
VGG_BATCH = 96  # so that computation is long beside the α of emulated hosts, as it is beside that of real ones


def orderings(elements: int, exchange: str = "") -> tuple[str, ...]:
    """FIFO after all messages and with overlap, then each method."""
    return (
        joined("unfused", exchange),
        joined("unfused", OVERLAP, exchange),
        joined(slices(elements), OVERLAP, exchange),
        joined('unfused+tictac(variant="tic")', OVERLAP, exchange),
        joined('unfused+tictac(variant="tac")', OVERLAP, exchange),
        joined(slices(elements), "p3", OVERLAP, exchange),
        bytescheduler(elements, exchange),
    )


def essential(elements: int, exchange: str = "") -> tuple[str, ...]:
    """FIFO with overlap, TAC, P3 and ByteScheduler."""
    _, _, fifo, _, tac, p3, credit = orderings(elements, exchange)
    return fifo, tac, p3, credit


COMBINED = (
    joined("mg-wfbp", OVERLAP),
    joined("mg-wfbp", "p3", OVERLAP),
    bytescheduler(LARGE, "half"),
)
P3S = ("p3", "p3(one_by_one=False)")  # messages one behind the other, or two that share the link
RIVALS = (*(joined(buckets(6), order, OVERLAP) for order in P3S), COMBINED[1])
SCENES = (
    Scene(  # where order can help: communication takes somewhat longer than computation, forward included
        network="vgg16",
        batch_size=VGG_BATCH,
        num_steps=6,
        num_workers=4,
        gbit=10.0,
        strategies=(
            "unfused",
            joined("unfused", OVERLAP),
            joined(buckets(12), OVERLAP),
            *(joined(buckets(12), order, OVERLAP) for order in P3S),
            *essential(VAST),
            TUNED,
        ),
        systems=("torch-ddp(bucket_mb=25)", "local"),
    ),
    Scene(  # likewise among eight, on a network of many small tensors
        network="resnet50",
        batch_size=64,
        num_workers=8,
        gbit=10.0,
        strategies=(
            "unfused",
            joined("unfused", OVERLAP),
            joined(buckets(2), OVERLAP),
            joined(buckets(2), "p3", OVERLAP),
            in_turn(buckets(2)),
            *essential(SMALL),
            in_turn(slices(SMALL)),
            joined(slices(PAPERS), OVERLAP),
            joined(slices(PAPERS), "p3", OVERLAP),
        ),
        systems=("torch-ddp(bucket_mb=25)", "local"),
    ),
    Scene(  # where none can: everything fits behind backward. TicTac's FIFO sends whole tensors, as it does
        network="vgg16",
        batch_size=VGG_BATCH,
        num_steps=6,
        num_workers=2,
        gbit=100.0,
        strategies=(joined("unfused", OVERLAP), *essential(VAST)),
        systems=("local",),
    ),
    Scene(
        network="gpt2",
        batch_size=8,
        num_workers=8,
        gbit=25.0,
        strategies=(
            joined(slices(LARGE), OVERLAP),
            in_turn(slices(LARGE)),
            joined(slices(LARGE), "p3", OVERLAP),
            COMBINED[2],
        ),
        systems=("local",),
    ),
    Scene(network="bert_base", batch_size=8, num_workers=8, gbit=25.0, strategies=COMBINED[:2], systems=("local",)),
    *(
        Scene(
            network="vgg16",
            batch_size=VGG_BATCH,
            num_steps=6,
            num_workers=number,
            gbit=25.0,
            strategies=(*essential(LARGE), in_turn(slices(LARGE))),
            systems=("local",),
        )
        for number in (16, 64)
    ),
    *(  # torch DDP at its best against the best of ours, each searched over three settings; 6 MiB of both for parity
        Scene(
            network=network,
            batch_size=batch_size,
            num_workers=8,
            gbit=gbit,
            strategies=(*RIVALS, buckets(6)),
            systems=(*(f"torch-ddp(bucket_mb={mib})" for mib in (2, 6, 25)), "local"),
        )
        for network, batch_size in (("resnet50", 64), ("bert_base", 8))
        for gbit in (10.0, 25.0)
    ),
    Scene(  # real sockets, for validation
        network="vgg16",
        batch_size=VGG_BATCH,
        num_steps=6,
        num_workers=2,
        gbit=10.0,
        strategies=(joined("unfused", OVERLAP), joined(buckets(12), OVERLAP), joined(buckets(12), "p3", OVERLAP)),
        systems=("local",),
        wire=Wire.SOCKETS,
    ),
)
PREDICTED = (*orderings(LARGE), *orderings(LARGE, SERVERS))
PREDICTED_NETWORKS = {"resnet50": 64, "vgg16": VGG_BATCH, "bert_base": 8, "gpt2": 8}
PREDICTED_HOSTS = 8
PREDICTED_WORLDS = (2, 4, 16, 64, 256, 512, 1024)  # beside these
REAL_SLICES = 65_536
REAL = (
    joined("unfused"),
    joined("unfused", OVERLAP),
    joined('unfused+tictac(variant="tac")', OVERLAP),
    joined(slices(REAL_SLICES), "p3", OVERLAP),
    bytescheduler(REAL_SLICES),
    joined(slices(REAL_SLICES), "p3", OVERLAP, SERVERS),
)


def grid(options: Options) -> Sequence[Trial]:
    """What is measured, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    if options.smoke:
        reduced = Scene(
            network="resnet50",
            batch_size=64,
            num_workers=2,
            gbit=25.0,
            strategies=(*orderings(LARGE), *COMBINED),
            systems=("local",),
        )
        served = replace(reduced, strategies=essential(LARGE, SERVERS), systems=(), wire=Wire.REAL)
        cells = [cell for scene in (reduced, served) for cell in scene.cells("ordering", options)]
        cells += trained("ordering", RESNET20_LARGE, REAL[3:4], (), options)
        return [shortened(cell, options) for cell in cells]
    replayed = (cell for scene in SCENES for cell in scene.cells("ordering", options))
    return interleave(distinct([*replayed, *_real_cells(options)]), options.num_repeats())


def predicted(options: Options) -> Sequence[Trial]:
    """The whole grid, for the predictor alone: every network and link under every ordering, on eight
    hosts, and wherever a network is measured what is measured there."""
    own: dict[tuple[str, float], list[str]] = {}
    for scene in SCENES:
        own.setdefault((scene.network, scene.gbit), []).extend(scene.strategies)
    return distinct(
        cell
        for network, batch_size in PREDICTED_NETWORKS.items()
        for gbit in LINKS
        for cell in Scene(
            network=network,
            batch_size=batch_size,
            num_workers=PREDICTED_HOSTS,
            gbit=gbit,
            strategies=tuple(dict.fromkeys((*PREDICTED, *own.get((network, gbit), ())))),
        ).cells("ordering", options)
    )


def _real_cells(options: Options) -> Iterator[Trial]:
    for recipe in (RESNET20_LARGE, BERT_TINY):
        yield from trained("ordering", recipe, REAL, (), options)


SUITE = Suite(
    name="ordering",
    question="Which message should go first, and where does that pay?",
    grid=grid,
    predicted=predicted,
    predicted_worlds=PREDICTED_WORLDS,
    budget_s=3300.0,
)
