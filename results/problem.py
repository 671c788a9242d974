"""What training on a paper's own problem gave."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemFacts:
    """The objective after each round; infinite where the descent diverged, which is its last round. `seconds` is what
    the rounds took, None where nothing was timed."""

    objectives: tuple[float, ...]
    seconds: float | None = None
