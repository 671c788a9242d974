"""Varys: coflows by smallest effective bottleneck first, each flow just as fast as its coflow can end.

Paper: Chowdhury et al., Efficient Coflow Scheduling with Varys, SIGCOMM 2014, section 5. A coflow's Γ is
the time its most loaded link needs: max over links of its bits over what better coflows leave. SEBF takes the
smallest Γ first; MADD gives each of its flows left/Γ. What remains is handed out fairly (work conservation).

Differs from the paper: all links count and not only the hosts' ports; no starvation guard (its T and δ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fabric.simulated.graph import Floats, Ints
from fabric.simulated.scheduling.fluid import Decision, UnderWay

FULL_BPS = 1.0  # less room than this on a link is what rounding leaves of a full one


@dataclass(frozen=True, slots=True)
class Varys:
    """SEBF and MADD."""

    name: ClassVar[str] = "varys"

    def decide(self, under_way: UnderWay) -> Decision:
        """Rates coflow by coflow, in the order of their bottlenecks; later ones get what earlier ones leave."""
        hops = np.diff(under_way.paths.offsets)
        bits, groups = np.repeat(under_way.left_bits, hops), np.repeat(under_way.coflow, hops)
        room = under_way.capacity_bps.astype(np.float64).copy()
        links = under_way.paths.links
        parts = {each: (links[groups == each], bits[groups == each]) for each in np.unique(under_way.coflow)}
        rates = np.zeros(len(under_way.flows))
        for each in sorted(parts, key=lambda each: _bottleneck_s(*parts[each], room)):
            gamma_s = _bottleneck_s(*parts[each], room)
            if np.isfinite(gamma_s):
                own = under_way.coflow == each
                rates[own] = under_way.left_bits[own] / gamma_s
                room -= np.bincount(parts[each][0], parts[each][1] / gamma_s, len(room))
        return Decision(np.zeros(len(under_way.flows), np.int64), promised_bps=rates)

    def next_change_s(self, under_way: UnderWay, rates_bps: Floats) -> float:
        return float("inf")


def _bottleneck_s(links: Ints, bits: Floats, room_bps: Floats) -> float:
    """Γ: how long the most loaded link takes; inf where better coflows leave nothing."""
    load = np.bincount(links, bits, len(room_bps))
    used = load > 0.0
    if (room_bps[used] < FULL_BPS).any():
        return float("inf")
    return float((load[used] / room_bps[used]).max())
