"""Petuum on the Lasso: coordinate descent by several workers at once, on blocks that its scheduler chooses.

Minimises ½‖y − X·w‖² + λ‖w‖₁ with columns of X of length 1. A worker changes its coordinate j to S(wⱼ + xⱼ·r, λ), S the
soft threshold, where r = y − X·w is the residual that it may read: with staleness s, that of s rounds ago beside its
own change of wⱼ since.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from baselines.consistency.petuum import Petuum

Chooses = Callable[[Tensor, Tensor, int, torch.Generator], list[int]]  # changes, couplings, workers, generator


@dataclass(frozen=True, slots=True)
class Lasso:
    """`design` [samples, parameters] with columns of length 1, `targets` [samples], `penalty` λ."""

    design: Tensor
    targets: Tensor
    penalty: float

    @classmethod
    def drawn(
        cls, *, num_samples: int, num_parameters: int, num_used: int, mixing: float, num_alike: int, seed: int
    ) -> Lasso:
        """A few parameters matter; `mixing` of each column is the same for `num_alike` in a row, which couples them."""
        generator = torch.Generator().manual_seed(seed)
        raw = torch.randn(num_samples, num_parameters, generator=generator, dtype=torch.float64)
        factors = torch.randn(num_samples, -(-num_parameters // num_alike), generator=generator, dtype=torch.float64)
        common = factors.repeat_interleave(num_alike, dim=1)[:, :num_parameters]
        mixed = (1 - mixing) * raw + mixing * common
        design = mixed / torch.linalg.vector_norm(mixed, dim=0)
        truth = torch.zeros(num_parameters, dtype=torch.float64)
        truth[torch.randperm(num_parameters, generator=generator)[:num_used]] = 3.0
        noise = 0.1 * torch.randn(num_samples, generator=generator, dtype=torch.float64)
        return cls(design, design @ truth + noise, penalty=0.1)

    def objective(self, weights: Tensor) -> float:
        """½‖y − X·w‖² + λ‖w‖₁."""
        residual = self.targets - self.design @ weights
        return float(0.5 * residual.square().sum() + self.penalty * weights.abs().sum())


@dataclass(slots=True)
class BlocksRun:
    """Where the rounds ended: `rounds` holds the parameters that changed at once, `objectives` after each round."""

    weights: Tensor
    rounds: list[list[int]]
    objectives: list[float]


def descend(
    problem: Lasso, rule: Petuum, *, num_workers: int, num_rounds: int, seed: int = 0, choose: Chooses | None = None
) -> BlocksRun:
    """`num_rounds` rounds of `num_workers` coordinates at once, chosen by the rule or by `choose` in its place.

    A descent that diverges ends with the round whose objective is no number any more, which counts as infinite.
    """
    generator = torch.Generator().manual_seed(seed)
    design, choose = problem.design, choose or rule.blocks
    weights = torch.zeros(design.shape[1], dtype=design.dtype)
    couplings, changes = (design.T @ design).abs(), torch.ones_like(weights)  # at first everything may matter
    residuals = deque([problem.targets.clone()], maxlen=rule.staleness + 1)
    done, recent = BlocksRun(weights, [], []), deque[Tensor](maxlen=rule.staleness)
    for _ in range(num_rounds):
        chosen = choose(changes, couplings, num_workers, generator)
        # The oldest residual that SSP allows is the worst case, and the one that repeats.
        read, before = residuals[0], weights.clone()
        own = sum((step[chosen] for step in recent), torch.zeros(len(chosen), dtype=design.dtype))
        slopes = design[:, chosen].T @ read - own  # a worker's own changes are in what it reads
        weights[chosen] = functional.softshrink(weights[chosen] + slopes, problem.penalty)
        step = weights - before
        changes[chosen] = step[chosen].abs()
        recent.append(step)
        # Updated and not computed anew: a round costs the chosen columns alone.
        residuals.append(residuals[-1] - design @ step)
        done.rounds.append(chosen)
        objective = problem.objective(weights)
        done.objectives.append(objective if math.isfinite(objective) else math.inf)
        if not math.isfinite(objective):
            break
    return done


def by_chance(changes: Tensor, couplings: Tensor, num_workers: int, generator: torch.Generator) -> list[int]:
    """Shotgun's choice (Bradley et al., ICML 2011), without priority or dependencies: what a scheduler has to beat."""
    return torch.randperm(len(changes), generator=generator)[:num_workers].tolist()
