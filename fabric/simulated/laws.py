"""What a transport makes of a link, as the packet engine shows it: a part of its rate, and a delay per flow.

The flow engine knows no queues. A law carries what the packet engine says of a transport over to it: flows of 1, 4 and
16 MB alone through one switch take `latency_s + n / (efficiency · C)` seconds, and four of them into one link keep
`shared` of it busy. A transport whose times are no such line has no law, and the reason says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from fabric.network import FLUID
from fabric.simulated.graph import NetworkError
from fabric.simulated.packet import PacketFlow, PacketResult, simulate_packets
from fabric.simulated.switches import SwitchSettings
from fabric.simulated.topologies import LeafSpine
from fabric.simulated.transports import TRANSPORTS

SIZES_BYTES = (1e6, 4e6, 16e6)
NUM_SHARING = 4
WORST_FIT = 0.15  # relative, of the line through the three times
PATIENCE_S = 2.0  # of virtual time


@dataclass(frozen=True, slots=True)
class TransportLaw:
    """`efficiency` and `shared` are payload over line rate, of one flow and of four into one link."""

    transport: str
    efficiency: float = 1.0
    shared: float = 1.0
    latency_s: float = 0.0
    residual: float = 0.0


def law_of(transport: str, rate_bps: float, delay_s: float) -> TransportLaw:
    """The law of `transport` on links of this rate and propagation delay; `fluid` has one without measuring.

    Raises: NetworkError for an unknown transport, and with the reason for one whose times follow no law.
    """
    if transport == FLUID:
        return TransportLaw(FLUID)
    if transport not in TRANSPORTS:
        raise NetworkError(f"{transport!r} is no transport; use one of {FLUID}, {', '.join(sorted(TRANSPORTS))}")
    return _measured(transport, rate_bps, delay_s)


@cache
def _measured(transport: str, rate_bps: float, delay_s: float) -> TransportLaw:
    alone = [_run(transport, rate_bps, delay_s, size, 1) for size in SIZES_BYTES]
    together = _run(transport, rate_bps, delay_s, SIZES_BYTES[-1], NUM_SHARING)
    if num_timeouts := int(sum(result.num_timeouts.sum() for result in (*alone, together))):
        raise NetworkError(
            f"{transport} at {rate_bps / 1e9:g} Gbit/s has no law: {num_timeouts} timeouts decide how long "
            f"{NUM_SHARING} flows of {SIZES_BYTES[-1] / 1e6:g} MB into one link take; use another transport, or {FLUID}"
        )
    alone_s, together_s = [float(result.end_s.max()) for result in alone], float(together.end_s.max())
    bits = 8 * np.array(SIZES_BYTES)
    # relative errors count: divide each line by its time
    matrix = np.stack([np.ones(3), bits / rate_bps], axis=1) / np.array(alone_s)[:, None]
    (latency_s, inverse), *_ = np.linalg.lstsq(matrix, np.ones(3), rcond=None)
    residual = float(np.abs(matrix @ [latency_s, inverse] - 1.0).max())
    if residual > WORST_FIT:
        raise NetworkError(
            f"{transport} at {rate_bps / 1e9:g} Gbit/s takes {', '.join(f'{1e3 * t:.3g}' for t in alone_s)} ms for "
            f"1, 4 and 16 MB, which no latency and rate explain ({residual:.0%} off); use another, or {FLUID}"
        )
    shared = NUM_SHARING * bits[-1] / (together_s * rate_bps)
    return TransportLaw(transport, 1.0 / float(inverse), float(shared), max(0.0, float(latency_s)), residual)


def _run(transport: str, rate_bps: float, delay_s: float, num_bytes: float, num_flows: int) -> PacketResult:
    """`num_flows` flows into one host at once."""
    graph = LeafSpine(1, 1, num_flows + 1, gbit=rate_bps / 1e9, delay_us=delay_s * 1e6).build()
    flows = [PacketFlow(host, 0, num_bytes, transport) for host in range(1, num_flows + 1)]
    result = simulate_packets(graph, flows, SwitchSettings(), until_s=PATIENCE_S)
    if not np.isfinite(result.end_s).all():
        raise NetworkError(
            f"{transport} does not get {num_flows} flows of {num_bytes / 1e6:g} MB through a link of "
            f"{rate_bps / 1e9:g} Gbit/s in {PATIENCE_S:g} s, so it has no law; use another transport, or {FLUID}"
        )
    return result
