"""DynSSP: staleness as in SSP, and an update weighs by how many of its version have come.

Paper: Jiang et al., Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017. `rule` constant: w ← w + u/P.
`rule` dynamic: version c keeps the mean ū of the d updates that have come, and contributes that mean: on arrival
d ← d + 1, δ = (u − ū)/d, w ← w + δ, ū ← ū + δ. So a fast worker's update counts in full while it is alone, and when
all P have come the version has contributed exactly their mean, in whatever order they came.

Not verified against the paper's text: the formulas follow its abstract and public descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from baselines.api import Card, Slot
from baselines.staleness import BoundedStaleness, check_staleness


@dataclass(frozen=True, slots=True)
class DynSsp(BoundedStaleness):
    card: ClassVar[Card] = Card(
        name="dynssp",
        slot=Slot.CONSISTENCY,
        summary="SSP whose versions contribute the mean of what has come",
        paper="Jiang et al., Heterogeneity-aware Distributed Parameter Servers, SIGMOD 2017",
    )
    staleness: int = 3
    rule: str = "dynamic"

    def __post_init__(self) -> None:
        check_staleness(self.staleness)
        if self.rule not in ("constant", "dynamic"):
            raise ValueError(f"rule is {self.rule!r}; use 'constant' or 'dynamic'")

    def share(self, num_arrived: int, num_workers: int) -> float:
        """1/P by the constant rule; by the dynamic one, one over the updates of its version that have come."""
        return 1.0 / (num_workers if self.rule == "constant" else num_arrived)
