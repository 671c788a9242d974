"""The links of a network on the virtual clock: rounds of flows share them from event to event."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from crossover.simulator.fluid import Action, Agenda
from fabric.simulated.bundles import fair_paces
from fabric.simulated.graph import Floats
from fabric.simulated.laws import TransportLaw
from fabric.simulated.placed import RoundLoad


@dataclass(slots=True, eq=False)
class Bundle:
    """A round under way: bits of its largest flow that are left in all repeats, and its pace."""

    load: RoundLoad
    done: Action
    left_bits: float
    pace_bps: float = 0.0


class NetworkLinks:
    """All links of one network. `carried_bits` [links] counts what has crossed each."""

    def __init__(self, clock: Agenda, capacity_bps: Floats, law: TransportLaw) -> None:
        self._clock, self._capacity_bps, self._law = clock, capacity_bps, law
        self._under_way: list[Bundle] = []
        self._since_s = 0.0
        self._plan = 0
        self.carried_bits = np.zeros(len(capacity_bps))

    def send(self, load: RoundLoad, done: Action) -> None:
        """Let a round go through its delays, then share the links; call `done` when its last repeat has arrived."""
        bundle = Bundle(load, done, load.largest_bits * load.repeats)
        self._clock.after(load.wait_s, partial(self._join, bundle))

    def _join(self, bundle: Bundle) -> None:
        self._settle()
        self._under_way.append(bundle)
        self._replan()

    def _settle(self) -> None:
        """Count what moved since the last event."""
        elapsed_s = self._clock.now_s - self._since_s
        for bundle in self._under_way:
            # rounding may carry a bundle past its end
            moved = min(bundle.left_bits, bundle.pace_bps * elapsed_s)
            bundle.left_bits -= moved
            self.carried_bits += bundle.load.weights * moved
        self._since_s = self._clock.now_s

    def _replan(self) -> None:
        self._plan += 1
        if not self._under_way:
            return
        # all of them anew: few bundles are under way, and a change reaches most
        weights = np.stack([bundle.load.weights for bundle in self._under_way])
        for bundle, pace in zip(self._under_way, fair_paces(weights, self._capacity_bps, self._law), strict=True):
            bundle.pace_bps = float(pace)
        first = min(self._under_way, key=lambda own: own.left_bits / own.pace_bps)
        self._clock.after(first.left_bits / first.pace_bps, partial(self._arrive, self._plan, first))

    def _arrive(self, plan: int, bundle: Bundle) -> None:
        if plan != self._plan:
            return  # somebody came or went since, and made a new plan
        self._settle()
        self._under_way.remove(bundle)
        # before `done`, which may send the next round and plan again
        self._replan()
        bundle.done()
