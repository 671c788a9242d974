"""Links of real clusters on this machine: the rate and the size scale that stand for each, and sizes that scale along.

With tensors S times smaller a link of rate r stands for one of S·r. Sizes that a strategy is given in bytes or elements
must then be S times smaller too, or one bucket would hold the whole network: grids write real sizes, `scaled` divides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.sizes import scaled
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from suites.api import Options
from suites.data import with_data
from suites.recipes import RATE_BPS, Recipe, trial

NUM_WARMUP = 2  # after those in which a job settles


@dataclass(frozen=True, slots=True)
class Standing:
    """A link of `rate_bps` and tensors `size_scale` times smaller."""

    rate_bps: float
    size_scale: int


# By the Gbit/s that it stands for. 1 Gbit/s is the highest rate at which eight emulated hosts keep the line.
LINKS = {
    1.0: Standing(200e6, 5),
    5.0: Standing(200e6, 25),
    10.0: Standing(200e6, 50),
    25.0: Standing(500e6, 50),
    100.0: Standing(1e9, 100),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A replayed network on so many hosts and a link of so many Gbit/s, under strategies and systems in real sizes."""

    network: str
    batch_size: int
    num_hosts: int
    gbit: float
    strategies: tuple[str, ...]
    systems: tuple[str, ...] = ()
    repeats: int = 3
    num_steps: int = 8

    def cells(self, suite: str, options: Options) -> Iterator[Trial]:
        """One repeat of each strategy and system. Raises: FabricError."""
        standing = LINKS[self.gbit]
        fabric = options.fabric_spec(num_hosts=self.num_hosts, rate_bps=standing.rate_bps)
        gbit = fabric.rate_bps * standing.size_scale / 1e9 if fabric.rate_bps else None
        group = f"replay-{fabric.num_hosts}" + ("" if gbit is None else f"-{gbit:g}")
        for job in self._jobs(standing.size_scale, options):
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


def trained(
    suite: str, recipe: Recipe, strategies: Sequence[str], systems: Sequence[str], options: Options
) -> Iterator[Trial]:
    """Real training on two hosts: the network is small, so its sizes stand for themselves."""
    fabric = options.fabric_spec(num_hosts=2, rate_bps=RATE_BPS)
    own = replace(with_data(recipe.workload, options.data_path), device=options.device)
    job = Job(name="job", workload=own, optimizer=recipe.optimizer)
    jobs = [replace(job, strategy=text) for text in strategies] + [replace(job, system=text) for text in systems]
    for job in jobs:
        yield trial(suite, "real", (job,), fabric, options, num_steps=recipe.num_steps, num_warmup=NUM_WARMUP)


Source = tuple[Callable[[Options], Iterator[Trial]], int]


def by_repeat(sources: Sequence[Source], options: Options) -> list[Trial]:
    """Repeat r of every source that has so many, then the next: what is compared lies close together in time."""
    cells = [(distinct(source(options)), options.repeats or repeats) for source, repeats in sources]
    return distinct(
        replace(cell, repeat=repeat, seed=cell.seed + repeat)
        for repeat in range(max(repeats for _, repeats in cells))
        for own, repeats in cells
        if repeat < repeats
        for cell in own
    )


def distinct(cells: Iterable[Trial]) -> list[Trial]:
    """Each once: where the command line sets hosts or rate, scenes that differ in nothing else fall together."""
    return list({cell.id: cell for cell in reversed(list(cells))}.values())[::-1]


def shortened(cell: Trial) -> Trial:
    """The same cell with as few steps as show that it runs, after all of its warm-up."""
    return replace(cell, num_steps=min(cell.num_steps, 3))
