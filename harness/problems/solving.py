"""A trial of a paper's own problem: run, and its record.

facts = solve(trial)  # its seed draws the problem and the order
"""

from __future__ import annotations

from dataclasses import replace

from baselines.consistency.hogwild import Hogwild
from baselines.consistency.petuum import Petuum
from baselines.strategy import parse_strategy
from harness.outcome import bare_record, fabric_facts
from harness.problems.asked import SparseLogistic
from harness.problems.blocks import Lasso, by_chance, descend
from harness.problems.shared_memory import SharedMemoryError, SparseSamples, train_shared
from harness.trial import Trial
from results.problem import ProblemFacts
from results.record import Environment, Record, Status

DIGITS = 9  # of an objective


def problem_record(trial: Trial, environment: Environment) -> Record:
    """The record of such a trial."""
    record = bare_record(trial, Status.OK, fabric_facts(trial, None), environment)
    try:
        return replace(record, problem=solve(trial))
    except SharedMemoryError as error:
        return replace(record, status=Status.ERROR, reason=str(error))


def solve(trial: Trial) -> ProblemFacts:
    """Draw the problem and solve it. Raises: SharedMemoryError."""
    asked = trial.problem
    assert asked is not None, "a trial of jobs has no problem of its own"
    rule = parse_strategy(asked.strategy).consistency
    if isinstance(asked, SparseLogistic):
        assert isinstance(rule, Hogwild)
        samples = SparseSamples.drawn(asked.num_samples, asked.num_features, asked.num_nonzeros, seed=trial.seed)
        run = train_shared(
            samples, rule, num_workers=asked.num_workers, num_epochs=asked.num_rounds, rate=asked.rate, seed=trial.seed
        )
        return ProblemFacts(objectives=tuple(round(loss, DIGITS) for loss in run.losses), seconds=run.seconds)
    assert isinstance(rule, Petuum)
    lasso = Lasso.drawn(
        num_samples=asked.num_samples, num_parameters=asked.num_parameters, num_used=asked.num_used,
        mixing=asked.mixing, num_alike=asked.num_alike, seed=trial.seed,
    )  # fmt: skip
    found = descend(
        lasso, rule, num_workers=asked.num_workers, num_rounds=asked.num_rounds, seed=trial.seed,
        choose=by_chance if asked.by_chance else None,
    )  # fmt: skip
    return ProblemFacts(objectives=tuple(round(own, DIGITS) for own in found.objectives))
