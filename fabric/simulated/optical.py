"""Optical hybrids: racks joined by a packet network and by circuits that follow the demand (Helios and c-Through).

In every epoch a matching of racks is chosen from the demand between racks, and the circuit switch is set. Circuits
carry what they join until the next epoch; everything else takes the packet network all the time.

- Helios (Farrington et al., SIGCOMM 2010): demands are estimated as in Hedera: what the flows would reach if the racks'
  transceivers were their only limit, whatever their sizes are. Circuits are one way. The matching is bipartite; its
  weights are the demands, each at most what a circuit carries, and a second circuit is weighed by what the first
  leaves. Setting takes 27 ms with their switch.
- c-Through (Wang et al., SIGCOMM 2010): demand is what waits in hosts' socket buffers, a circuit joins two racks both
  ways, the matching is Edmonds'. Setting takes milliseconds, a matching holds for about 100 ms. End hosts demultiplex.

Differs from the papers: fluids; which flows wait is known without delay, and Helios leaves no small ones out; each rack
has `num_per_rack` transceivers in Helios and one in c-Through. The packet network is any topology whose hosts are the
racks, shared max-min fairly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
from scipy.optimize import linear_sum_assignment

from fabric.simulated.flow_traffic import Circuits, Hybrid
from fabric.simulated.graph import Bools, Floats, Ints, NetworkError, NetworkGraph, PathSet
from fabric.simulated.routing import route
from fabric.simulated.scheduling.fluid import BITS, max_min_rates
from fabric.simulated.scheduling.hedera import estimate_demands

DONE_BITS = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class HybridResult:
    """When each flow had ended [flows], and how many bytes went over circuits and over packets."""

    end_s: Floats
    circuit_bytes: float
    packet_bytes: float
    num_epochs: int


def check_circuits(circuits: Circuits, pairs: Sequence[tuple[int, int]], starts_s: Sequence[float]) -> None:
    """Whether such circuits carry anything, and these flows. Raises: NetworkError with value and remedy."""
    if circuits.gbit <= 0.0:
        raise NetworkError(f"circuits of {circuits.gbit} Gbit/s exchange nothing; use a rate above 0")
    if not 0.0 <= circuits.setting_ms < circuits.epoch_ms:
        raise NetworkError(
            f"an epoch of {circuits.epoch_ms} ms that begins with {circuits.setting_ms} ms of darkness carries "
            "nothing; use a longer epoch"
        )
    if circuits.num_per_rack < 1 or (circuits.hybrid is Hybrid.C_THROUGH and circuits.num_per_rack != 1):
        raise NetworkError(f"{circuits.hybrid} with {circuits.num_per_rack} circuits per rack is not made; use 1")
    if len(set(pairs)) < len(pairs):
        raise NetworkError("two flows join the same racks; circuits serve pairs of racks, so make them one flow")
    if any(starts_s):
        raise NetworkError(f"a flow starts at {max(starts_s)} s; beside circuits all start at 0, without jitter")


def matching(circuits: Circuits, waiting_bits: Floats) -> list[tuple[int, int]]:
    """Directed circuits (from rack, to rack) for what waits [racks, racks]; only where something does."""
    if circuits.hybrid is Hybrid.C_THROUGH:
        return _edmonds(waiting_bits)
    sources, destinations = np.nonzero(waiting_bits)
    left, joined = np.zeros_like(waiting_bits), []
    # in circuits: a rack sends and receives over all that it has
    left[sources, destinations] = circuits.num_per_rack * estimate_demands(sources, destinations)
    for _ in range(circuits.num_per_rack):
        rows, columns = linear_sum_assignment(np.minimum(left, 1.0), maximize=True)
        joined += [(int(a), int(b)) for a, b in zip(rows, columns, strict=True) if left[a, b] > 0.0]
        left[rows, columns] = np.maximum(left[rows, columns] - 1.0, 0.0)
    return joined


def run_hybrid(
    graph: NetworkGraph, circuits: Circuits, pairs: Sequence[tuple[int, int]], sizes: Floats
) -> HybridResult:
    """Deliver `sizes` [flows] bytes between pairs of racks, the hosts of `graph`, all from 0 s on.

    Raises: NetworkError for circuits or flows that cannot be.
    """
    check_circuits(circuits, pairs, ())
    running = _Delivery(graph, pairs, sizes * BITS)
    epochs = 0
    while running.waiting.any():
        epochs += 1
        joined = matching(circuits, running.waiting_bits())
        lit: Floats = np.array([circuits.gbit * 1e9 * joined.count(pair) for pair in pairs])
        running.serve(lit * 0.0, circuits.setting_ms / 1e3)
        running.serve(lit, (circuits.epoch_ms - circuits.setting_ms) / 1e3)
    delivered = running.by_circuit + running.by_packet
    assert np.isclose(delivered, (sizes * BITS).sum(), rtol=1e-6), "the hybrid lost bits"
    return HybridResult(running.end_s, running.by_circuit / BITS, running.by_packet / BITS, epochs)


class _Delivery:
    """What is left of each flow, bits, and where it went."""

    def __init__(self, graph: NetworkGraph, pairs: Sequence[tuple[int, int]], bits: Floats) -> None:
        self._graph, self._pairs = graph, pairs
        sources, destinations = zip(*pairs, strict=True)
        paths = route(graph, sources, destinations)
        self._paths = [paths[flow].tolist() for flow in range(len(pairs))]
        self._left, self._now = bits.copy(), 0.0
        self.end_s: Floats = np.zeros(len(pairs))
        self.by_circuit = self.by_packet = 0.0

    @property
    def waiting(self) -> Bools:
        """Which flows have not ended."""
        return self._left > DONE_BITS

    def waiting_bits(self) -> Floats:
        """What is left of each pair's flow [racks, racks]."""
        racks = self._graph.num_hosts
        found = np.zeros((racks, racks))
        for (source, destination), left in zip(self._pairs, self._left, strict=True):
            found[source, destination] = left
        return found

    def serve(self, lit_bps: Floats, length_s: float) -> None:
        """Serve for up to `length_s`: flows whose pair is lit by its circuit, the others by packets."""
        passed = 0.0
        while passed < length_s and (waiting := self.waiting).any():
            circuit = np.where(waiting, lit_bps, 0.0)
            rates = circuit + self._packet_rates(np.flatnonzero(waiting & (lit_bps == 0.0)))
            step = length_s - passed
            if (served := rates > 0.0).any():
                step = min(step, float((self._left[served] / rates[served]).min()))
            moved = np.minimum(rates * step, self._left)
            moved = np.where(self._left - moved <= DONE_BITS, self._left, moved)  # what rounding leaves goes along
            self.by_circuit += float(moved[circuit > 0.0].sum())
            self.by_packet += float(moved[circuit == 0.0].sum())
            self._left -= moved
            passed += step
            self.end_s[waiting] = self._now + passed  # of those that go on, once more later
        self._now += passed

    def _packet_rates(self, flows: Ints) -> Floats:
        """Max-min rates of those that have no circuit; pairs on one leave the packet network to others."""
        rates = np.zeros(len(self._pairs))
        if len(flows):
            own = PathSet.of([self._paths[flow] for flow in flows.tolist()])
            rates[flows] = max_min_rates(own, self._graph.link_rate_bps)
        return rates


def _edmonds(demand: Floats) -> list[tuple[int, int]]:
    graph = nx.Graph()
    both = demand + demand.T
    for a, b in zip(*np.nonzero(np.triu(both, 1)), strict=True):
        graph.add_edge(int(a), int(b), weight=float(both[a, b]))
    pairs = sorted(tuple(sorted(pair)) for pair in nx.max_weight_matching(graph))
    return [direction for a, b in pairs for direction in ((a, b), (b, a))]
