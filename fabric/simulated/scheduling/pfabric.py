"""pFabric: the flow with the fewest bytes left goes first, on every link.

Paper: Alizadeh et al., pFabric: Minimal Near-Optimal Datacenter Transport, SIGCOMM 2013, section 4: packets carry the
flow's remaining size as their priority, switches serve and keep the smallest.

Differs from the paper: fluids in place of packets with small buffers and drops, so its rate control has no part. Flows
with equal bytes left share a rank; where one of them is served faster, it is ahead after `PACKET_BITS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fabric.simulated.graph import Floats
from fabric.simulated.scheduling.fluid import Decision, UnderWay

PACKET_BITS = 1500 * 8.0


@dataclass(frozen=True, slots=True)
class PFabric:
    """Shortest remaining processing time."""

    name: ClassVar[str] = "pfabric"

    def decide(self, under_way: UnderWay) -> Decision:
        return Decision(np.unique(np.round(under_way.left_bits), return_inverse=True)[1])

    def next_change_s(self, under_way: UnderWay, rates_bps: Floats) -> float:
        """When a flow that is served faster is a packet ahead of one with as much left, or less: neighbours in order
        meet first."""
        left_bits = np.round(under_way.left_bits)
        order = np.lexsort((rates_bps, left_bits))
        ahead_bits, faster_bps = np.diff(left_bits[order]), np.diff(rates_bps[order])
        meets = faster_bps > 0.0
        return float(np.min((ahead_bits[meets] + PACKET_BITS) / faster_bps[meets], initial=np.inf))
