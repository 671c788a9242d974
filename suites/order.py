"""The order in which trials run: random within a repeat, so that no cell always comes after the same other one.

Cells of one place are compared repeat by repeat, so they run next to each other, and it is places that are shuffled,
then the cells of each: a machine's speed drifts within a minute, and two trials that follow each other have more of it
in common. A machine that warms up, or slows down during a run, touches all cells alike; from the times in the records
anyone can check it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from crossover import Sharing
from harness.trial import Trial

Item = TypeVar("Item")


def in_random_order(trials: Sequence[Trial], seed: int) -> list[Trial]:
    """The same trials, those of a repeat in an order that `seed` and the repeat decide, place by place.

    Jobs that share stay together and run exclusively first: that measures the costs from which the other policies get
    their settings and predictions. What has no clock keeps its order. Sorts nothing across repeats that the suite has
    mixed: each stretch of one repeat is shuffled by itself.
    """
    ordered: list[Trial] = []
    for (repeat, timed), stretch in itertools.groupby(trials, key=lambda t: (t.repeat, t.fabric.kind.has_processes)):
        if not timed:
            ordered += stretch
            continue
        random = Random(f"{seed}, repeat {repeat}")  # a text: numbers that lie close give orders that are not
        for place in _shuffled(_grouped(stretch, _place), random):
            for unit in _shuffled(_grouped(place, _unit), random):
                ordered += sorted(_shuffled(unit, random), key=lambda trial: trial.sharing is not Sharing.EXCLUSIVE)
    return ordered


def _place(trial: Trial) -> Hashable:
    """What trials that are compared have in common: what is trained, and on what."""
    return trial.fabric, tuple(job.workload for job in trial.jobs)


def _unit(trial: Trial) -> Hashable:
    """Trials of the same sharing jobs together, every other trial alone."""
    if trial.sharing is None:
        return trial.cell
    return tuple(replace(job, num_steps=None, start_phase=0.0) for job in trial.jobs)


def _grouped(trials: Iterable[Trial], key: Callable[[Trial], Hashable]) -> list[list[Trial]]:
    groups: dict[Hashable, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return list(groups.values())


def _shuffled(items: Sequence[Item], random: Random) -> list[Item]:
    mixed = list(items)
    random.shuffle(mixed)
    return mixed
