"""DynSSP: staleness as in SSP, and an update weighs by how many of its version have come.

Paper: Jiang et al., Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017. `rule` constant: w ← w + u/P.
`rule` dynamic: version c keeps the mean ū of the d updates that have come, and contributes that mean: on arrival
d ← d + 1, δ = (u − ū)/d, w ← w + δ, ū ← ū + δ. So a fast worker's update counts in full while it is alone, and when
all P have come the version has contributed exactly their mean, in whatever order they came.

Not verified against the paper's text: the formulas follow its abstract and public descriptions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot


@dataclass(frozen=True, slots=True)
class DynSsp:
    card: ClassVar[Card] = Card(
        name="dynssp",
        slot=Slot.CONSISTENCY,
        summary="SSP whose versions contribute the mean of what has come",
        paper="Jiang et al., Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017",
    )
    staleness: int = 3
    rule: str = "dynamic"

    def __post_init__(self) -> None:
        if self.staleness < 0:
            raise ValueError(f"staleness is {self.staleness}; use 0 (BSP) or more clocks")
        if self.rule not in ("constant", "dynamic"):
            raise ValueError(f"rule is {self.rule!r}; use 'constant' or 'dynamic'")

    @property
    def is_synchronous(self) -> bool:
        """Only without staleness."""
        return self.staleness == 0

    def may_start(self, clocks: Sequence[int], own: int) -> bool:
        """While the worker is at most `staleness` clocks ahead of the slowest one."""
        return clocks[own] - min(clocks) <= self.staleness

    def must_include(self, clock: int) -> int:
        """All updates more than `staleness` clocks old."""
        return clock - self.staleness - 1

    def share(self, num_arrived: int, num_workers: int) -> float:
        """1/P by the constant rule; by the dynamic one, one over the updates of its version that have come."""
        return 1.0 / (num_workers if self.rule == "constant" else num_arrived)
