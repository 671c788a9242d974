"""HPCC: switches write their load into every packet, senders set their windows by it.

Paper: Li et al., HPCC: High Precision Congestion Control, SIGCOMM 2019, section 3 and algorithm 1.
Per hop u = min(q, q_prev)/(B·T) + txRate/B; U = (1 − τ/T)U + (τ/T)·max u. If U ≥ η or the stage is maxStage:
W = W_c/(U/η) + W_AI, else W = W_c + W_AI; W_c follows once per round trip. Rate W/T. η = 95 %, maxStage = 5,
W_AI = B·T(1 − η)/N, N = 100 flows. T is the round trip without queues. INT adds 42 bytes per packet (5 hops).
A flow's first acknowledgement is only stored, as in the authors' simulator: a rate takes two.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import HPCC, PS_PER_S, Simulated
from fabric.simulated.switches import FlowControl
from fabric.simulated.transports import roce
from fabric.simulated.transports.spec import Reliability, TransportSpec

ETA = 0.95
LAST_STAGE = 5
NUM_FLOWS = 100
TELEMETRY_BYTES = 42
LEAST_WINDOW = 0.01  # packets; below one the rate W/T paces

SPEC = TransportSpec(
    "hpcc", HPCC, "Li et al., SIGCOMM 2019", Reliability.GO_BACK_N, FlowControl.PFC, 1024,
    roce.SPEC_V2.header_bytes + TELEMETRY_BYTES, timeout_s=roce.TIMEOUT_S,
)  # fmt: skip


@inlined
def on_start(sim: Simulated, number: int) -> None:
    """One bandwidth-delay product at line rate."""
    flow = sim.flows[number]
    flow.window = flow.line_bps / 8 * flow.base_rtt_ps / PS_PER_S / flow.packet_bytes
    flow.reference, flow.peak, flow.previous = flow.window, flow.window, 1.0


@inlined
def on_ack(sim: Simulated, packet: int, now: int) -> None:
    flow = sim.flows[sim.packets[packet].flow]
    is_first = flow.window_end == 0
    _observe(sim, packet, is_first)
    if is_first:
        flow.window_end = flow.next_seq
        return
    once = sim.packets[packet].ack > flow.window_end
    additive = flow.peak * (1 - ETA) / NUM_FLOWS
    if flow.previous >= ETA or flow.stage >= LAST_STAGE:
        window = flow.reference / (flow.previous / ETA) + additive
        if once:
            flow.stage = 0
    else:
        window = flow.reference + additive
        if once:
            flow.stage += 1
    flow.window = min(max(window, LEAST_WINDOW), flow.peak)
    if once:
        flow.reference, flow.window_end = flow.window, flow.next_seq
    flow.rate_bps = min(flow.window / flow.peak, 1.0) * flow.line_bps


@inlined
def _observe(sim: Simulated, packet: int, is_first: bool) -> None:
    """The largest utilisation on the path since the last packet, smoothed over the round trip (`previous` is U)."""
    number = sim.packets[packet].flow
    flow = sim.flows[number]
    most, gap = 0.0, 0
    for hop in range(flow.path_len):
        now, then = sim.telemetry[packet, hop], sim.seen[number, hop]
        if not is_first and now[2] > then[2]:
            bytes_per_s = sim.hop_bps[sim.paths[flow.path_at + hop]] / 8
            rate = (now[1] - then[1]) * (float(PS_PER_S) / (now[2] - then[2]))
            used = min(now[0], then[0]) * (float(PS_PER_S) / flow.base_rtt_ps) / bytes_per_s + rate / bytes_per_s
            if used > most:
                most, gap = used, now[2] - then[2]
        then[0], then[1], then[2] = now[0], now[1], now[2]
    part = min(gap / flow.base_rtt_ps, 1.0)
    flow.previous = (1 - part) * flow.previous + part * most
