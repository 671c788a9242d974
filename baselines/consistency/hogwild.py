"""Hogwild!: threads of one host update the same parameters without locks.

Paper: Recht, Ré, Wright and Niu, Hogwild!: A Lock-Free Approach to Parallelizing SGD, NIPS 2011. Each worker repeats:
draw a sample, read the few parameters that it touches, and add −γ times the gradient to each, with no lock and no
order. Where samples are sparse, two workers seldom touch the same parameter at once, and the loss falls almost as in
serial SGD. γ is multiplied by `decay` after each epoch, as in the paper's experiments (0.9 there).

It runs in shared memory on one host (`harness.problems.shared_memory`), on the paper's kind of problem: sparse
logistic regression. As a rule of a slot it is ASP, and a trial among several hosts refuses it.

Differs from the paper: workers are processes that share memory and not threads, since Python's threads compute one at a
time; a worker goes over its own shuffled part of the samples in each epoch, and workers meet between two epochs. The
sum of a parameter is not atomic here (the paper assumes an atomic one), so an update may be lost to a simultaneous one.
The paper trains support vector machines, matrix completion and graph cuts. Not verified against the paper's text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot
from baselines.staleness import BoundedStaleness


@dataclass(frozen=True, slots=True)
class Hogwild(BoundedStaleness):
    """As `asp`; each epoch's step is `decay` times the last one's."""

    card: ClassVar[Card] = Card(
        name="hogwild",
        slot=Slot.CONSISTENCY,
        summary="no locks on one host's shared memory",
        paper="Recht et al., Hogwild!, NIPS 2011",
    )
    shares_memory: ClassVar[bool] = True
    decay: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay is {self.decay}; use a factor above 0 and up to 1, e.g. 0.9")

    @property
    def staleness(self) -> None:
        """Any number."""
        return None
