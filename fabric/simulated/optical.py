"""Optical hybrids: racks joined by a packet network and by circuits that follow the demand (Helios and c-Through).

Every epoch the demand between racks is looked at, a matching of racks is chosen, the circuit switch is set, and
circuits carry what they join until the next epoch; everything else takes the packet network all the time.

- Helios (Farrington et al., SIGCOMM 2010): demands are estimated as in Hedera, circuits are one way, the matching
  is bipartite and of largest weight (transceivers send to any other rack's). Setting takes 27 ms with their switch.
- c-Through (Wang et al., SIGCOMM 2010): demand is what waits in hosts' socket buffers, a circuit joins two racks both
  ways, the matching is Edmonds'. Setting takes milliseconds, a matching holds for about 100 ms. End hosts demultiplex.

Differs from the papers: fluids; demands are known without delay; each rack has `num_circuits` transceivers in Helios
and one in c-Through. The packet network is one rate into and out of each rack, shared max-min fairly.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import networkx as nx
import numpy as np
from scipy.optimize import linear_sum_assignment

from fabric.simulated.graph import Floats, Ints, NetworkError, PathSet
from fabric.simulated.scheduling.fluid import max_min_rates

BITS = 8.0
DONE_BITS = 1.0


class HybridKind(StrEnum):
    """Whose matching is used."""

    HELIOS = "helios"
    C_THROUGH = "c-through"


@dataclass(frozen=True, slots=True)
class OpticalHybrid:
    """`packet_gbit` into and out of each rack, `circuit_gbit` per circuit; epochs begin with `setting_ms` dark."""

    kind: HybridKind
    num_racks: int = 8
    packet_gbit: float = 1.0
    circuit_gbit: float = 10.0
    setting_ms: float = 27.0
    epoch_ms: float = 127.0
    num_circuits: int = 1

    def __post_init__(self) -> None:
        if self.num_racks < 2 or min(self.packet_gbit, self.circuit_gbit) <= 0.0:
            raise NetworkError(f"{self.num_racks} racks at these rates exchange nothing; use 2 racks and rates above 0")
        if not 0.0 <= self.setting_ms < self.epoch_ms:
            raise NetworkError(
                f"an epoch of {self.epoch_ms} ms that begins with {self.setting_ms} ms of darkness carries nothing; "
                "use a longer epoch"
            )
        if self.num_circuits < 1 or (self.kind is HybridKind.C_THROUGH and self.num_circuits != 1):
            raise NetworkError(f"{self.kind} with {self.num_circuits} circuits per rack is not made; use 1")

    def matching(self, demand: Floats) -> list[tuple[int, int]]:
        """Directed circuits (from rack, to rack) for a demand [racks, racks]; only where there is any."""
        if self.kind is HybridKind.C_THROUGH:
            return _edmonds(demand)
        left, circuits = demand.copy(), []
        for _ in range(self.num_circuits):
            rows, columns = linear_sum_assignment(left, maximize=True)
            circuits += [(int(a), int(b)) for a, b in zip(rows, columns, strict=True) if left[a, b] > 0.0]
            carried = self.circuit_gbit * 1e9 * (self.epoch_ms - self.setting_ms) / 1e3
            left[rows, columns] = np.maximum(left[rows, columns] - carried, 0.0)
        return circuits


@dataclass(frozen=True, slots=True, eq=False)
class HybridResult:
    """When all was delivered, and how many bytes went over circuits and packets."""

    end_s: float
    circuit_bytes: float
    packet_bytes: float
    num_epochs: int


def run_hybrid(network: OpticalHybrid, demand_bytes: Floats) -> HybridResult:
    """Deliver a demand [racks, racks] in bytes; the diagonal must be empty."""
    racks = network.num_racks
    if demand_bytes.shape != (racks, racks) or np.diag(demand_bytes).any() or (demand_bytes < 0).any():
        raise NetworkError(f"a demand between {racks} racks is [{racks}, {racks}], not below 0, with an empty diagonal")
    left, now = demand_bytes * BITS, 0.0
    by_circuit = by_packet = 0.0
    epochs = 0
    while left.max() > DONE_BITS:
        epochs += 1
        circuits = network.matching(left)
        optical = np.zeros((racks, racks))
        for source, destination in circuits:
            optical[source, destination] += network.circuit_gbit * 1e9
        for length_s, rates in ((network.setting_ms, optical * 0.0), (network.epoch_ms - network.setting_ms, optical)):
            taken_s, circuit, packet = _drain(network, left, rates, length_s / 1e3)
            now, by_circuit, by_packet = now + taken_s, by_circuit + circuit, by_packet + packet
    assert np.isclose(by_circuit + by_packet, (demand_bytes * BITS).sum(), rtol=1e-6), "the hybrid lost bits"
    return HybridResult(now, by_circuit / BITS, by_packet / BITS, epochs)


def _drain(network: OpticalHybrid, left: Floats, optical: Floats, length_s: float) -> tuple[float, float, float]:
    """Serve for up to `length_s`; `left` is changed. Return the time taken, and bits by circuit and by packet."""
    passed, by_circuit, by_packet = 0.0, 0.0, 0.0
    while passed < length_s and left.max() > DONE_BITS:
        waiting = left > DONE_BITS
        circuit = np.where(waiting, optical, 0.0)
        packet = _packet_rates(network, waiting & (optical == 0.0))
        rates = circuit + packet
        served = rates > 0.0
        step = (
            min(length_s - passed, float((left[served] / rates[served]).min())) if served.any() else length_s - passed
        )
        moved = np.minimum(rates * step, left)
        moved = np.where(left - moved <= DONE_BITS, left, moved)  # what rounding leaves goes along
        by_circuit += float(moved[circuit > 0.0].sum())
        by_packet += float(moved[circuit == 0.0].sum())
        left -= moved
        passed += step
    return passed, by_circuit, by_packet


def _packet_rates(network: OpticalHybrid, waiting: Floats) -> Floats:
    """Max-min rates over an uplink and a downlink per rack; pairs on a circuit leave them to others."""
    rates = np.zeros_like(waiting, np.float64)
    rows, columns = np.nonzero(waiting)
    if len(rows):
        links: Ints = np.stack([rows, network.num_racks + columns], axis=1).reshape(-1)
        paths = PathSet(np.arange(len(rows) + 1) * 2, links)
        rates[rows, columns] = max_min_rates(paths, np.full(2 * network.num_racks, network.packet_gbit * 1e9))
    return rates


def _edmonds(demand: Floats) -> list[tuple[int, int]]:
    graph = nx.Graph()
    both = demand + demand.T
    for a, b in zip(*np.nonzero(np.triu(both, 1)), strict=True):
        graph.add_edge(int(a), int(b), weight=float(both[a, b]))
    pairs = sorted(tuple(sorted(pair)) for pair in nx.max_weight_matching(graph))
    return [direction for a, b in pairs for direction in ((a, b), (b, a))]
