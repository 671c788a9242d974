"""The suite `headlines`: what papers claim in their abstracts, each in a setting as near to its own as can be had.

One cell for a paper's method, one for its baseline as it had it, and the best dense ones that are known here, side by
side with computation from profiles: on the paced fabric, and where that would measure this machine on the virtual clock
(`crossover-bench predict headlines`). README.md beside this lists what differs from each paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fabric.api import FabricKind
from harness.sizes import scaled
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.headlines.papers import HEADLINES, SGD, PaperSetting, places
from suites.recipes import trial
from suites.scaling import NUM_WARMUP, PACED_SCALE, distinct, shortened, standing

NAME = "headlines"


def grid(options: Options) -> Sequence[Trial]:
    """Every place that can be measured, repeats interleaved; `--smoke` keeps one short repeat of one place."""
    measured = [place for place in places() if not place.on_clock]
    if options.smoke:
        return [shortened(cell, options) for cell in cells_of(measured[0], options)]
    return interleave(_cells(measured, options), options.num_repeats())


def predicted(options: Options) -> Sequence[Trial]:
    """Every cell of every place, for the virtual clock."""
    return _cells(places(), options)


def _cells(of: Sequence[PaperSetting], options: Options) -> list[Trial]:
    return distinct(cell for place in of for cell in cells_of(place, options))


def cells_of(place: PaperSetting, options: Options) -> Iterator[Trial]:
    """One repeat of every method and baseline in a place, and of a worker alone. Raises: FabricError."""
    here, job = [own for own in HEADLINES if own.place == place], _job(place)
    methods = {} if options.strategies else {own.own: own.optimizer for own in here}
    for text in options.strategies or dict.fromkeys((*(own.baseline for own in here), *place.best)):
        role = Role.RIVAL if "topk" in text else Role.DENSE
        yield _cell(place, replace(job, strategy=text, role=role), options)
    for text, optimizer in methods.items():
        yield _cell(place, replace(job, strategy=text, optimizer=optimizer), options)
    yield _cell(place, replace(job, system="local"), options)


def _job(place: PaperSetting) -> Job:
    workload = WorkloadSpec(
        network=place.network, device=Device.REPLAY, batch_size=place.batch_size, size_scale=PACED_SCALE
    )
    return Job(name="job", workload=workload, optimizer=SGD)


def _cell(place: PaperSetting, job: Job, options: Options) -> Trial:
    fabric = options.paced_spec(
        num_workers=place.num_workers,
        rate_bps=standing(place.gbit, FabricKind.PACED).rate_bps,
        alpha_s=place.alpha_s,
        virtual=not place.on_clock,
    )
    gbit = fabric.rate_bps * PACED_SCALE / 1e9 if fabric.rate_bps else None
    return trial(
        NAME,
        f"replay-{fabric.num_ranks}" + ("" if gbit is None else f"-{gbit:g}"),
        (replace(job, strategy=scaled(job.strategy, PACED_SCALE)),),
        fabric,
        options,
        num_steps=place.num_steps,
        num_warmup=NUM_WARMUP,
        axis="" if gbit is None else "Gbit/s",
        at=gbit,
    )


SUITE = Suite(
    name=NAME,
    question="Does what the papers claim show in settings like theirs, over baselines at their best?",
    grid=grid,
    predicted=predicted,
    fabric=FabricKind.PACED,
    budget_s=1200.0,
)
