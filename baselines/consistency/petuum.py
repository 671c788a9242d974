"""Petuum: SSP tables, and a scheduler that gives workers blocks of parameters which do not disturb each other.

Papers: Xing et al., Petuum: A New Platform for Distributed Machine Learning on Big Data, KDD 2015; Lee et al., On Model
Parallelization and Scheduling Strategies for Distributed Machine Learning (STRADS), NIPS 2014. In each round:

    priority     draw `candidates` parameters, j with probability ∝ |δⱼ| + η, where δⱼ is j's last change
    dependency   keep those, in order of priority, whose coupling |xⱼ·xₖ| to all kept before is at most `coupling`
    update       each worker changes its own parameter, reading what SSP with `staleness` lets it read

Coupled parameters that change at once overshoot together: their sum moves twice. Training a network has no such
blocks; a trial under `petuum` follows its SSP rule alone. `harness.problems.blocks` runs the rounds on the papers'
problem, the Lasso.

Differs from the papers: one scheduler rather than one per shard of parameters, and rounds are lockstep; candidates are
ordered by priority, drawn without replacement. The dependency check covers one round, so with staleness above 0 coupled
parameters of neighbouring rounds still overshoot: on the tests' small Lasso staleness 2 ended 65 % above the best after
800 rounds. Formulas not verified against the papers' text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baselines.api import Card, Slot
from baselines.staleness import BoundedStaleness, check_staleness


@dataclass(frozen=True, slots=True)
class Petuum(BoundedStaleness):
    """SSP with `staleness`, and blocks chosen among `candidates` per worker; η is `floor`."""

    card: ClassVar[Card] = Card(
        name="petuum",
        slot=Slot.CONSISTENCY,
        summary="SSP tables, and blocks of parameters scheduled by priority and dependency",
        paper="Xing et al., Petuum, KDD 2015; Lee et al., STRADS, NIPS 2014",
    )
    staleness: int = 0
    candidates: int = 4
    coupling: float = 0.1
    floor: float = 0.1

    def __post_init__(self) -> None:
        check_staleness(self.staleness)
        if self.candidates < 1:
            raise ValueError(f"candidates is {self.candidates}; use 1 or more per worker")
        if not 0 <= self.coupling <= 1:
            raise ValueError(f"coupling is {self.coupling}; use a correlation from 0 (none) to 1 (any)")
        if self.floor <= 0:
            raise ValueError(f"floor is {self.floor}; use a small priority above 0, so that nothing is forgotten")

    def blocks(self, changes: Tensor, couplings: Tensor, num_workers: int, generator: torch.Generator) -> list[int]:
        """At most `num_workers` parameters to change at once, in order of priority.

        `changes` [parameters] are the sizes of their last changes, `couplings` [parameters, parameters] |xⱼ·xₖ|.
        """
        priority = changes.abs() + self.floor
        num = min(self.candidates * num_workers, len(priority))
        drawn = torch.multinomial(priority, num, generator=generator)
        chosen: list[int] = []
        for one in drawn[priority[drawn].argsort(descending=True, stable=True)].tolist():
            if bool((couplings[one, chosen] <= self.coupling).all()):
                chosen.append(one)
            if len(chosen) == num_workers:
                break
        return chosen
