"""The rule that `bsp`, `ssp`, `asp` and their kin share: how many clocks a worker may be ahead of the slowest one.

Paper: Ho et al., More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS 2013. Bulk
synchronous is the bound 0, asynchronous no bound at all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class BoundedStaleness(ABC):
    """A `baselines.api.Consistency` but for its card and `staleness`, in clocks, None without a bound.

    Differs from the papers: each update counts 1/P, so that P workers step as far as one batch P times as large.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def staleness(self) -> int | None:
        """How many clocks a worker may be ahead."""

    @property
    def is_synchronous(self) -> bool:
        """Only with staleness 0."""
        return self.staleness == 0

    def may_start(self, clocks: Sequence[int], own: int) -> bool:
        """While the worker is at most `staleness` clocks ahead of the slowest one."""
        return self.staleness is None or clocks[own] - min(clocks) <= self.staleness

    def must_include(self, clock: int) -> int:
        """All updates more than `staleness` clocks old; without a bound, or before there are any, none (−1)."""
        return -1 if self.staleness is None else max(-1, clock - self.staleness - 1)

    def share(self, num_arrived: int, num_workers: int) -> float:
        """1/P of each update, however many have come."""
        return 1.0 / num_workers


def check_staleness(staleness: int) -> None:
    """Raises: ValueError below 0."""
    if staleness < 0:
        raise ValueError(f"staleness is {staleness}; use 0 (BSP) or more clocks")
