"""Rounds of flows on shared links, each as one bundle: what a clock needs that cannot simulate every flow.

A round ends with its last flow, so a faster flow of it only waits; on average over the round all progress at the pace
of the slowest. A bundle is that average: its flows move together, and on a link it has the weight of its flows there,
in units of its largest one. Pace is shared max-min fairly per flow, as by `flow.simulate_flows`, whose times a lone
round of equal flows has exactly. Rounds that repeat are one bundle for as long as all repeats together.
"""

from __future__ import annotations

import numpy as np

from fabric.simulated.graph import Floats
from fabric.simulated.laws import TransportLaw

FULL = 1e-9  # of a link's rate: as good as nothing left


def fair_paces(weights: Floats, capacity_bps: Floats, law: TransportLaw) -> Floats:
    """bit/s of the largest flow of each bundle; `weights` [bundles, links] are flows per link.

    A link that several flows share carries the part of its rate that `law` says of sharing.
    """
    crowd = weights.sum(axis=0)
    room = capacity_bps * np.where(crowd > 1.0 + FULL, law.shared, law.efficiency)
    nothing = FULL * capacity_bps
    paces = np.zeros(len(weights))
    moving = np.ones(len(weights), np.bool_)
    while moving.any():
        demand = weights[moving].sum(axis=0)
        used = demand > 0.0
        step = float((room[used] / demand[used]).min())
        paces[moving] += step
        room = room - demand * step
        # whoever crosses a full link has found its bottleneck; the others go on
        full = used & (room <= nothing)
        moving &= ~(weights[:, full] > 0.0).any(axis=1)
    return paces
