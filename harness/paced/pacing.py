"""How a process is paced: the model of its host's link, and who keeps the time.

The link is a fluid server in a process of its own (`shared_fluid`): the flows of all jobs that have something to carry
progress at 1/n each, as TCP's do, and with link turns there is only one job's. It keeps the time, so a job's own
interpreter delays an answer and never the link.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from fabric.cluster import FabricSpec
from fabric.paced import PacedLink, paced_link
from harness.paced.link_client import Carrier, LinkClient


@dataclass(slots=True)
class PacedTraffic:
    """What the paced groups of a process have sent so far: operations, payload bytes (mean over ranks, as the table of
    collectives has it), and seconds of link time asked for."""

    num_messages: int = 0
    num_bytes: float = 0.0
    link_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pacing:
    """A host's link and its keeper, for all paced groups of a process. `is_virtual`: no peer is real, and operations
    have the answers that equal peers would give."""

    link: PacedLink
    carrier: Carrier
    is_virtual: bool = False
    traffic: PacedTraffic = field(default_factory=PacedTraffic)

    def at_full_size(self, size_scale: int) -> Pacing:
        """The same link for what is not `size_scale` times smaller than what it stands for, as tensors in replay are:
        the line that it stands for is so much faster."""
        rate_bps = None if self.link.rate_bps is None else self.link.rate_bps * size_scale
        return replace(self, link=replace(self.link, rate_bps=rate_bps))


def pacing_of(spec: FabricSpec, socket: str) -> Pacing | None:
    """How a rank on `spec` is paced, by the link that serves at `socket`; None on the other fabrics.

    Raises: FabricError if none serves there.
    """
    link = paced_link(spec)
    return Pacing(link, LinkClient(Path(socket)), spec.num_virtual > 0) if link is not None else None
