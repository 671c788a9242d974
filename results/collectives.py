"""What one library takes for one collective: raw times by size, and the bandwidths that they mean.

Algorithm bandwidth is size over time. Bus bandwidth is what each link carried in one direction over time, which can be
held against the line: algorithm bandwidth times 2(P−1)/P for all-reduce, (P−1)/P for all-gather and all-to-all, 1 for
broadcast and point-to-point (nccl-tests, PERFORMANCE.md). The two are never mixed.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from enum import StrEnum

BITS = 8
LARGE_BYTES = 25_000_000  # of a message that gradients make, and at which libraries are held against the line


class Operation(StrEnum):
    """What is timed."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all-to-all"
    POINT_TO_POINT = "point-to-point"


def bus_factor(operation: Operation, num_ranks: int) -> float:
    """Bytes that the busiest link carries in one direction, over the size."""
    ring = (num_ranks - 1) / num_ranks
    return {
        Operation.ALL_REDUCE: 2 * ring,
        Operation.ALL_GATHER: ring,
        Operation.ALL_TO_ALL: ring,
        Operation.BROADCAST: 1.0,
        Operation.POINT_TO_POINT: 1.0,
    }[operation]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTimes:
    """Seconds per operation of each row of `row_length` operations, on the slowest rank."""

    num_bytes: int
    row_length: int
    times_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Over rows."""
        return statistics.median(self.times_s)

    @property
    def algorithm_bps(self) -> float:
        """Size over the median time, in bit/s."""
        return self.num_bytes * BITS / self.median_s


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFacts:
    """A library's operation among `num_ranks`, by size. α and β are fitted to the medians by relative errors, with
    `fit_residual` the largest of these; None where fewer than two sizes were timed."""

    library: str
    operation: Operation
    num_ranks: int
    sizes: tuple[SizeTimes, ...]
    alpha_s: float | None = None
    beta_s_per_byte: float | None = None
    fit_residual: float | None = None

    @property
    def factor(self) -> float:
        """Bus bandwidth over algorithm bandwidth."""
        return bus_factor(self.operation, self.num_ranks)

    def bus_bps(self, num_bytes: int) -> float | None:
        """Bus bandwidth at a size in bit/s; None where that was left out."""
        return next((self.factor * own.algorithm_bps for own in self.sizes if own.num_bytes == num_bytes), None)

    @property
    def largest_s(self) -> float:
        """The median time of the largest size that was timed."""
        return self.sizes[-1].median_s
