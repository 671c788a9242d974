"""The paced fabric: an α–β model of a host's link, for machines where no network can be shaped, and for one GPU.

A collective really runs, over whatever the machine has, and is complete when it has run *and* the model's link
has carried it. All jobs of a host share its link. An operation takes it for

    num_steps · α + num_bytes · 8/rate

seconds, which follow from its kind, n bytes a rank and N ranks (`PacedLink`):

    all-reduce   2(N−1) steps   2(N−1)/N · n   ring (Patarasuk and Yuan, JPDC 2009)
    all-gather   N−1            (N−1) · n      ring
    gather       1              (N−1) · n      everybody sends at once, the root's link receives
    broadcast    ⌈log₂ N⌉       ⌈log₂ N⌉ · n   binomial tree
    shift        1              n              to the next rank

α is link time like the rest: it is not filled by another job's bytes, so two jobs in turns and the theory's m agree.
A real collective on several real ranks waits for the last of them; the model's link of each host does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, log2

from fabric.cluster import FabricKind, FabricSpec
from fabric.native import NativeCluster


class PacedCluster(NativeCluster):
    """Hosts that are names only, like the native ones: what holds ranks back is the model of their links."""


class Pattern(StrEnum):
    """Who sends what to whom."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    GATHER = "gather"
    BROADCAST = "broadcast"
    SHIFT = "shift"


@dataclass(frozen=True, slots=True)
class PacedLink:
    """A host's link among `num_ranks` ranks of a job: `alpha_s` a step, `rate_bps` bit/s (None: no limit)."""

    num_ranks: int
    alpha_s: float
    rate_bps: float | None

    def seconds(self, pattern: Pattern, num_bytes: int) -> float:
        """Link time of an operation on `num_bytes` a rank; 0 for one rank."""
        num_steps, num_carried = _cost(pattern, num_bytes, self.num_ranks)
        return num_steps * self.alpha_s + (0.0 if self.rate_bps is None else num_carried * 8 / self.rate_bps)


def paced_link(spec: FabricSpec) -> PacedLink | None:
    """The link that `spec` asks for; None on another fabric."""
    return PacedLink(spec.num_ranks, spec.alpha_s, spec.rate_bps) if spec.kind is FabricKind.PACED else None


def _cost(pattern: Pattern, num_bytes: int, num_ranks: int) -> tuple[int, float]:
    """Steps, and bytes that cross one host's link; from this module's table."""
    others, rounds = num_ranks - 1, ceil(log2(num_ranks))
    if others == 0:
        return 0, 0.0
    return {
        Pattern.ALL_REDUCE: (2 * others, 2 * others / num_ranks * num_bytes),
        Pattern.ALL_GATHER: (others, others * num_bytes),
        Pattern.GATHER: (1, others * num_bytes),
        Pattern.BROADCAST: (rounds, rounds * num_bytes),
        Pattern.SHIFT: (1, num_bytes),
    }[pattern]
