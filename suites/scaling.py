"""Links of real clusters on this machine: the rate and the size scale that stand for each, and sizes that scale along.

With tensors S times smaller a link of rate r stands for one of S·r. Sizes that a strategy is given in bytes or elements
must then be S times smaller too, or one bucket would hold the whole network: grids write real sizes, `scaled` divides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fabric.api import FabricKind, FabricSpec
from harness.sizes import scaled
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from suites.api import Options
from suites.data import with_data
from suites.recipes import RATE_BPS, Recipe, trial

MIB = 1024 * 1024
PACED_SCALE = 500  # of tensors on a modelled link
NUM_WARMUP = 2  # after those in which a job settles


@dataclass(frozen=True, slots=True)
class Standing:
    """A link of `rate_bps` and tensors `size_scale` times smaller."""

    rate_bps: float
    size_scale: int


# By the Gbit/s that it stands for, on sockets: what two cores can carry without having much to do.
LINKS = {
    1.0: Standing(200e6, 5),
    5.0: Standing(200e6, 25),
    10.0: Standing(200e6, 50),
    25.0: Standing(500e6, 50),
    100.0: Standing(1e9, 100),
}


class Wire(StrEnum):
    """What carries a replayed cell's messages, unless the command line names a fabric."""

    MODELLED = "modelled"  # paced, one real rank among virtual peers
    SOCKETS = "sockets"  # emulated: what validates, and what systems with a wire of their own need


def standing(gbit: float, kind: FabricKind, paced_scale: int = PACED_SCALE) -> Standing:
    """What stands for a link of `gbit` Gbit/s. On a modelled link nothing but the tensors' own work sets a limit, so
    they are as small as keeps that work short: 500 times, at which every tensor's one element still adds less than a
    per cent of bytes."""
    return Standing(gbit * 1e9 / paced_scale, paced_scale) if kind is FabricKind.PACED else LINKS[gbit]


def replay_place(
    options: Options, *, num_workers: int, gbit: float, wire: Wire, paced_scale: int = PACED_SCALE
) -> tuple[FabricSpec, int]:
    """The fabric of a replayed cell on a link that stands for `gbit` Gbit/s, and its size scale, `paced_scale` on a
    modelled link.

    Raises: FabricError.
    """
    kind = options.fabric or (FabricKind.EMULATED if wire is Wire.SOCKETS else FabricKind.PACED)
    stands = standing(gbit, kind, paced_scale)
    if kind is FabricKind.PACED:
        virtual = wire is Wire.MODELLED
        fabric = options.paced_spec(num_workers=num_workers, rate_bps=stands.rate_bps, virtual=virtual)
    else:
        fabric = options.fabric_spec(num_hosts=num_workers, rate_bps=stands.rate_bps)
    return fabric, stands.size_scale


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A replayed network among so many workers on a link of so many Gbit/s, under strategies and systems in real
    sizes."""

    network: str
    batch_size: int
    num_workers: int
    gbit: float
    strategies: tuple[str, ...]
    systems: tuple[str, ...] = ()
    num_steps: int = 10
    wire: Wire = Wire.MODELLED

    def cells(self, suite: str, options: Options) -> Iterator[Trial]:
        """One repeat of each strategy and system. Raises: FabricError."""
        fabric, size_scale = replay_place(options, num_workers=self.num_workers, gbit=self.gbit, wire=self.wire)
        gbit = fabric.rate_bps * size_scale / 1e9 if fabric.rate_bps else None
        group = f"replay-{fabric.num_ranks}" + ("" if gbit is None else f"-{gbit:g}")
        for job in self._jobs(size_scale, options):
            yield trial(
                suite,
                group,
                (job,),
                fabric,
                options,
                num_steps=self.num_steps,
                num_warmup=NUM_WARMUP,
                axis="" if gbit is None else "Gbit/s",
                at=gbit,
            )

    def _jobs(self, size_scale: int, options: Options) -> Iterator[Job]:
        workload = WorkloadSpec(
            network=self.network, device=Device.REPLAY, batch_size=self.batch_size, size_scale=size_scale
        )
        job = Job(name="job", workload=workload, optimizer="sgd(lr=0.1)")
        for strategy in options.strategies or [scaled(text, size_scale) for text in self.strategies]:
            yield replace(job, strategy=strategy)
        for system in self.systems:
            yield replace(job, system=scaled(system, size_scale))


def buckets(mib: float, first_mib: float = 1.0) -> str:
    """Fixed buckets of so many MiB, in real sizes."""
    return f"fixed-buckets(bucket_bytes={round(mib * MIB)}, first_bucket_bytes={round(first_mib * MIB)})"


def trained(
    suite: str, recipe: Recipe, strategies: Sequence[str], systems: Sequence[str], options: Options
) -> Iterator[Trial]:
    """Real training on two hosts: the network is small, so its sizes stand for themselves."""
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    own = replace(with_data(recipe.workload, options), device=options.device)
    job = Job(name="job", workload=own, optimizer=recipe.optimizer)
    jobs = [replace(job, strategy=text) for text in strategies] + [replace(job, system=text) for text in systems]
    for job in jobs:
        yield trial(suite, "real", (job,), fabric, options, num_steps=recipe.num_steps, num_warmup=NUM_WARMUP)


def distinct(cells: Iterable[Trial]) -> list[Trial]:
    """Each once: where the command line sets hosts or rate, scenes that differ in nothing else fall together."""
    return list({cell.id: cell for cell in reversed(list(cells))}.values())[::-1]


def shortened(cell: Trial, options: Options) -> Trial:
    """The same cell with as few steps as show that it runs, or as were asked for, after all of its warm-up."""
    return replace(cell, num_steps=min(cell.num_steps, options.num_steps or 3))
