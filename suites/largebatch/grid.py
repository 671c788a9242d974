"""The suite `largebatch`: how far a batch can grow at an equal number of epochs.

Every rule at every batch has a rate of its own from a search of equal budget (`largebatch-search`), but the one-hour
recipe and its linear scaling alone, which are not tuned: they scale the best rate of the base batch. README.md says how
to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fabric.api import FabricKind
from harness.trial import Trial
from results.facts import Role
from suites.api import Options, Suite, interleave
from suites.largebatch.cells import BASE_BATCH, DIGITS, ONE_HOUR, TASKS, LargeBatchTask, cell, one_hour, steps_of
from suites.largebatch.rates import rate_of

NAME = "largebatch"
REPEATS = 6
SCALED = "one-hour recipe"  # in records: its linear scaling and warm-up alone
RECIPE = "Goyal et al., 2017"


def grid(options: Options) -> Sequence[Trial]:
    """Every rule and recipe at every batch, seeds in turn; `--smoke` keeps the base batch on digits."""
    cells = [
        trial
        for task in ((DIGITS, ONE_HOUR) if options.smoke else (*TASKS, ONE_HOUR))
        for batch in (task.batches[:1] if options.smoke else task.batches)
        for trial in _cells(task, batch, options)
    ]
    return interleave(cells, options.repeats or (1 if options.smoke else REPEATS))


def _cells(task: LargeBatchTask, batch: int, options: Options) -> Iterator[Trial]:
    if options.smoke:
        options = _shortened(options)
    times, num_steps = batch / BASE_BATCH, steps_of(task, batch, options)
    for rule in task.rules:
        optimizer = rule.optimizer(rate_of(task, rule, batch), times, num_steps)
        role = Role.DENSE if rule.name == "sgd" else Role.METHOD
        yield cell(NAME, task, batch, rule.name, optimizer, options, role=role)
        if rule.power:
            optimizer = rule.decayed(rate_of(task, rule, batch), times, num_steps)
            yield cell(NAME, task, batch, f"{rule.name}, decayed", optimizer, options, role=Role.METHOD)
    if task is ONE_HOUR:
        optimizer = one_hour(rate_of(DIGITS, DIGITS.rules[0]), times, num_steps)
        yield cell(NAME, task, batch, RECIPE, optimizer, options, role=Role.DENSE)
        undecayed = optimizer.partition("+step-decay(")[0]
        yield cell(NAME, task, batch, f"{RECIPE}, undecayed", undecayed, options, role=Role.METHOD)
    elif times > 1:
        sgd = task.rules[0]
        optimizer = sgd.optimizer(times * rate_of(task, sgd), times, num_steps)
        yield cell(NAME, task, batch, SCALED, optimizer, options, role=Role.METHOD)


def _shortened(options: Options) -> Options:
    return replace(options, num_steps=options.num_steps or 12)


SUITE = Suite(
    name=NAME,
    question="How far can a batch grow at an equal number of epochs, and which rule still learns there?",
    grid=grid,
    fabric=FabricKind.LOCKSTEP,
)
