"""The paced fabric: an α–β model of a host's link, for machines where no network can be shaped, and for one GPU.

A collective really runs, over whatever the machine has, and is complete when it has run *and* the model's link
has carried it. All jobs of a host share its link. An operation takes it for

    num_rounds · α + num_bytes · 8/rate

seconds: the rounds, and the bytes that the busiest host's link carries in one direction, of the table of collectives
(`fabric.collectives`).

α is link time like the rest: it is not filled by another job's bytes, so two jobs in turns and the theory's m agree.
A real collective on several real ranks waits for the last of them; the model's link of each host does not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fabric.cluster import FabricKind, FabricSpec
from fabric.collectives import Collective, load_of
from fabric.native import NativeCluster

PACED = FabricKind.PACED.value  # also the name of the torch.distributed backend


class PacedCluster(NativeCluster):
    """Hosts that are names only, like the native ones: what holds ranks back is the model of their links."""


@dataclass(frozen=True, slots=True)
class PacedLink:
    """A host's link among `num_ranks` ranks of a job: `alpha_s` a round, `rate_bps` bit/s (None: no limit)."""

    num_ranks: int
    alpha_s: float
    rate_bps: float | None

    def seconds(self, collective: Collective, num_bytes: float) -> float:
        """Link time of `collective` on `num_bytes`, n of the table of collectives; 0 for one rank."""
        load = load_of(collective, self.num_ranks)
        bytes_s = 0.0 if self.rate_bps is None else load.link_bytes * num_bytes * 8 / self.rate_bps
        return load.num_rounds * self.alpha_s + bytes_s

    def among(self, num_ranks: int) -> PacedLink:
        """The same link for a group of `num_ranks`."""
        return replace(self, num_ranks=num_ranks)


def paced_link(spec: FabricSpec) -> PacedLink | None:
    """The link that `spec` asks for; None on another fabric."""
    return PacedLink(spec.num_ranks, spec.alpha_s, spec.rate_bps) if spec.kind is FabricKind.PACED else None
