"""The papers' own problems, as plain values: Hogwild!'s sparse regression and Petuum's Lasso."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from baselines.consistency.hogwild import Hogwild
from baselines.consistency.petuum import Petuum
from baselines.strategy import parse_strategy
from baselines.text import split_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseLogistic:
    """Logistic regression on `num_samples` with `num_nonzeros` of `num_features` each; a round is an epoch of all
    samples, by `num_workers` processes that share the parameters' memory."""

    num_workers: int
    strategy: str = "hogwild"
    num_rounds: int = 8
    rate: float = 0.5
    num_samples: int = 2000
    num_features: int = 1000
    num_nonzeros: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedLasso:
    """The Lasso by coordinate descent: in a round `num_workers` parameters change at once, chosen by the strategy or
    `by_chance`. `mixing` of each column is the same for `num_alike` in a row."""

    num_workers: int
    strategy: str = "petuum"
    by_chance: bool = False
    num_rounds: int = 400
    num_samples: int = 400
    num_parameters: int = 300
    num_used: int = 10
    mixing: float = 0.6
    num_alike: int = 30


Problem = SparseLogistic | BlockedLasso


class ProblemError(ValueError):
    """A problem that cannot be solved as asked; the message names the value and the remedy."""


def check_problem(problem: Problem) -> None:
    """Whether the strategy solves it, and there are enough samples and workers. Raises: ProblemError, TextError,
    CatalogueError."""
    wanted = Hogwild if isinstance(problem, SparseLogistic) else Petuum
    rule = parse_strategy(problem.strategy).consistency
    if not isinstance(rule, wanted) or len(split_parts(problem.strategy)) > 1:
        raise ProblemError(
            f"{problem.strategy!r} does not solve {type(problem).__name__}; use {wanted.card.name!r} alone"
        )
    most = problem.num_samples if isinstance(problem, SparseLogistic) else problem.num_parameters
    if not 1 <= problem.num_workers <= most:
        raise ProblemError(f"num_workers is {problem.num_workers}; use 1 to {most}, of which each has something to do")
    if problem.num_rounds < 1:
        raise ProblemError(f"num_rounds is {problem.num_rounds}; use 1 or more")
    for name, value, holds, remedy in _bounds(problem):
        if not holds:
            raise ProblemError(f"{name} is {value:g}; use {remedy}")


def _bounds(problem: Problem) -> Iterator[tuple[str, float, bool, str]]:
    """What is drawn: name, value, whether it can be, and what can."""
    if isinstance(problem, SparseLogistic):
        yield "rate", problem.rate, 0 < problem.rate < math.inf, "a learning rate above 0, e.g. 0.5"
        num, most = problem.num_nonzeros, problem.num_features
        yield "num_nonzeros", num, 1 <= num <= most, f"1 to {most}, of which each sample has as many"
        return
    num, most = problem.num_used, problem.num_parameters
    yield "num_used", num, 0 <= num <= most, f"0 to {most} of the parameters"
    yield "num_samples", problem.num_samples, problem.num_samples >= 1, "1 or more"
    yield "mixing", problem.mixing, 0 <= problem.mixing <= 1, "a share from 0 to 1"
    yield "num_alike", problem.num_alike, problem.num_alike >= 1, "1 (none alike) or more"
