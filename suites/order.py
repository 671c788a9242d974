"""The order in which trials run: random within a repeat, so that no cell always comes after the same other one.

A machine that warms up, or slows down during a run, then touches all cells alike; from the times in the records anyone
can check it. Repeats stay one after the other, since repeats of different cells are compared in pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from random import Random

from crossover import Sharing
from harness.trial import Trial


def in_random_order(trials: Sequence[Trial], seed: int) -> list[Trial]:
    """The same trials, those of a repeat in an order that `seed` and the repeat decide.

    Jobs that share stay together and run exclusively first: that measures the costs from which the other policies get
    their settings and predictions. What has no clock keeps its order. Sorts nothing across repeats that the suite has
    mixed: each stretch of one repeat is shuffled by itself.
    """
    ordered: list[Trial] = []
    for (repeat, timed), stretch in itertools.groupby(trials, key=lambda t: (t.repeat, t.fabric.kind.has_processes)):
        units = list(_units(stretch))
        if timed:
            random = Random(f"{seed}, repeat {repeat}")  # a text: numbers that lie close give orders that are not
            random.shuffle(units)
            units = [_shuffled(unit, random) for unit in units]
        ordered += itertools.chain.from_iterable(units)
    return ordered


def _units(trials: Iterable[Trial]) -> Iterable[list[Trial]]:
    """Trials of the same sharing jobs together, every other trial alone."""
    units: dict[Hashable, list[Trial]] = {}
    for place, trial in enumerate(trials):
        alike = tuple(replace(job, num_steps=None, start_phase=0.0) for job in trial.jobs)
        units.setdefault((alike, trial.fabric) if trial.sharing is not None else place, []).append(trial)
    return units.values()


def _shuffled(unit: Sequence[Trial], random: Random) -> list[Trial]:
    mixed = list(unit)
    random.shuffle(mixed)
    return sorted(mixed, key=lambda trial: trial.sharing is not Sharing.EXCLUSIVE)
