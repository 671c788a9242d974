"""The suite `ordering`: which message should go first, and where does that pay?

Replayed networks on 2 to 8 hosts under each ordering, on all-reduce and on parameter servers, with updates after all
messages or just before a layer needs its own; real training on 2 hosts; and a grid up to 1,024 workers that is
predicted only. Sizes are those of a real cluster, divided by the size scale (`suites.scaling`, README.md beside this).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from harness.trial import Trial
from suites.api import Options, Suite
from suites.recipes import BERT_TINY, RESNET20_LARGE
from suites.scaling import LINKS, Scene, by_repeat, distinct, shortened, trained

MANY, FEW = 5, 3  # repeats: where a claim rests on the cell, and elsewhere
OVERLAP = "at-pre-hook"
SERVERS = "parameter-server"
SMALL = "slices(slice_elements=250000)"  # 1 MB
LARGE = "slices(slice_elements=2000000)"  # 8 MB: the smallest partition that ByteScheduler searches
PAPERS = "slices(slice_elements=40000)"  # P3's own
CREDIT = 16_000_000  # bytes, two partitions


def joined(*parts: str) -> str:
    """A strategy text."""
    return "+".join(part for part in parts if part)


def bytescheduler(partition: str, *rest: str, credit_bytes: int = CREDIT) -> str:
    """Partition, credit and priority together."""
    return joined(partition, f"bytescheduler(credit_bytes={credit_bytes})", OVERLAP, *rest)


TUNED = bytescheduler(LARGE, "bayesian(trials=12, steps=3)")


def orderings(partition: str, exchange: str = "") -> tuple[str, ...]:
    """FIFO after all messages and with overlap, then each method: what every claim is made of."""
    return (
        joined("unfused", exchange),
        joined("unfused", OVERLAP, exchange),
        joined(partition, OVERLAP, exchange),
        joined('unfused+tictac(variant="tic")', OVERLAP, exchange),
        joined('unfused+tictac(variant="tac")', OVERLAP, exchange),
        joined(partition, "p3", OVERLAP, exchange),
        bytescheduler(partition, exchange),
    )


def essential(partition: str, exchange: str = "") -> tuple[str, ...]:
    """FIFO twice, P3 and ByteScheduler."""
    every = orderings(partition, exchange)
    return every[1], every[2], every[5], every[6]


COMBINED = (
    joined("mg-wfbp", OVERLAP),
    joined("mg-wfbp", "p3", OVERLAP),
    bytescheduler(LARGE, "half"),
)
SCENES = (
    Scene(
        network="vgg16",
        batch_size=32,
        num_hosts=4,
        gbit=25.0,
        strategies=(*orderings(LARGE), TUNED, *orderings(LARGE, SERVERS)),
        systems=("local",),
        repeats=MANY,
    ),
    Scene(
        network="resnet50",
        batch_size=32,
        num_hosts=4,
        gbit=5.0,
        strategies=(*orderings(SMALL), *essential(SMALL, SERVERS)),
        systems=("local",),
        repeats=MANY,
    ),
    Scene(  # nothing to gain: the link is fast enough for all
        network="resnet50",
        batch_size=32,
        num_hosts=4,
        gbit=100.0,
        strategies=essential(LARGE),
        systems=("local",),
        repeats=MANY,
    ),
    Scene(
        network="resnet50",
        batch_size=32,
        num_hosts=2,
        gbit=10.0,
        strategies=(joined(PAPERS, "p3", OVERLAP), joined(PAPERS, "p3", OVERLAP, SERVERS)),
        systems=("local",),
    ),
    Scene(  # P3's: four machines and few Gbit/s
        network="vgg16",
        batch_size=32,
        num_hosts=4,
        gbit=10.0,
        strategies=(*essential(LARGE), *essential(LARGE, SERVERS)),
        systems=("local",),
    ),
    Scene(network="gpt2", batch_size=8, num_hosts=2, gbit=10.0, strategies=COMBINED, systems=("local",)),
    Scene(
        network="bert_base", batch_size=8, num_hosts=8, gbit=25.0, strategies=essential(LARGE)[1:], systems=("local",)
    ),
)
PREDICTED = (*orderings(LARGE), *orderings(LARGE, SERVERS))
PREDICTED_NETWORKS = {"resnet50": 32, "vgg16": 32, "bert_base": 8, "gpt2": 8}
PREDICTED_HOSTS = 8
PREDICTED_WORLDS = (2, 4, 16, 64, 256, 512, 1024)  # beside these
SMALL_SLICES = "slices(slice_elements=65536)"
REAL = (
    joined("unfused"),
    joined("unfused", OVERLAP),
    joined('unfused+tictac(variant="tac")', OVERLAP),
    joined(SMALL_SLICES, "p3", OVERLAP),
    bytescheduler(SMALL_SLICES, credit_bytes=524288),
    joined(SMALL_SLICES, "p3", OVERLAP, SERVERS),
)


def grid(options: Options) -> Sequence[Trial]:
    """What is measured, repeats interleaved; `--smoke` keeps one short repeat of a few cells."""
    if options.smoke:
        smoke = Scene(
            network="resnet50",
            batch_size=32,
            num_hosts=2,
            gbit=25.0,
            strategies=(*orderings(LARGE), *orderings(LARGE, SERVERS), *COMBINED),
            systems=("local",),
        )
        cells = [*smoke.cells("ordering", options), *trained("ordering", RESNET20_LARGE, REAL[3:4], (), options)]
        return [shortened(cell) for cell in cells]
    replayed = [(partial(scene.cells, "ordering"), scene.repeats) for scene in SCENES]
    return by_repeat([*replayed, (_real_cells, MANY)], options)


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
            num_hosts=PREDICTED_HOSTS,
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
)
