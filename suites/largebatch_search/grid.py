"""The suite `largebatch-search`: five rates for every rule, batch and workload of `largebatch`, one seed of its own.

`python -m suites.largebatch_search.choose FOLDER` takes the best of each; the trials are kept as records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fabric.api import FabricKind
from harness.trial import Trial
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.largebatch.cells import BASE_BATCH, TASKS, cell, steps_of

NAME = "largebatch-search"
SEARCH_SEED = 1000  # apart from the seeds of the suite itself, which count from 1


def grid(options: Options) -> Sequence[Trial]:
    """One trial per rate; `--smoke` keeps the base batch on digits, a few steps each."""
    seeded = replace(
        options, seed=options.seed + SEARCH_SEED, num_steps=options.num_steps or (4 if options.smoke else None)
    )
    cells = [
        cell(
            NAME,
            task,
            batch,
            f"{rule.name} at {rate:g}",
            rule.optimizer(rate, batch / BASE_BATCH, steps_of(task, batch, seeded)),
            seeded,
            role=Role.METHOD,
        )
        for task in (TASKS[:1] if options.smoke else TASKS)
        for batch in (task.batches[:1] if options.smoke else task.batches)
        for rule in task.rules
        for rate in rule.rates
    ]
    return interleave(cells, options.repeats or 1)


SUITE = Suite(
    name=NAME,
    question="At which rate does each rule learn best, batch by batch, among five?",
    grid=grid,
    fabric=FabricKind.LOCKSTEP,
)
