"""TIMELY: the rate follows the gradient of the round-trip time.

Paper: Mittal et al., TIMELY: RTT-based Congestion Control for the Datacenter, SIGCOMM 2015, algorithm 1.
Per segment of 16 KB: d = (1 − w)d + w·(rtt − previous rtt), normalised by the least RTT.
rtt < T_low: R += δ. rtt > T_high: R *= 1 − β(1 − T_high/rtt). Else d ≤ 0: R += N·δ, N = 5 from the fifth time in a row
on, else 1; d > 0: R *= 1 − β·d. δ = 10 Mbit/s, β = 0.8, w = 0.875, T_low = 50 µs, T_high = 500 µs (section 6.1).
Flows start at line rate over the lossless fabric, RTTs are taken from the data's own stamps.

Differs from the paper: at most one update per round trip, or a long queue would cut a flow's rate once per segment that
stood in it; the gradient counts up to 1.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import PS_PER_US, TIMELY, Simulated
from fabric.simulated.switches import FlowControl
from fabric.simulated.transports import roce
from fabric.simulated.transports.spec import Reliability, TransportSpec

SEGMENT_PACKETS = 16
STEP_BPS = 10e6
BETA = 0.8
WEIGHT = 0.875
LOW_PS = 50 * PS_PER_US
HIGH_PS = 500 * PS_PER_US
HYPER_AFTER = 5
LOWEST_BPS = 10e6

SPEC = TransportSpec(
    "timely", TIMELY, "Mittal et al., SIGCOMM 2015", Reliability.GO_BACK_N, FlowControl.PFC, 1024,
    roce.SPEC_V2.header_bytes, timeout_s=roce.TIMEOUT_S,
)  # fmt: skip


@inlined
def on_ack(sim: Simulated, number: int, newly: int, rtt_ps: int, now: int) -> None:
    flow = sim.flows[number]
    flow.acked += newly
    if flow.acked < SEGMENT_PACKETS or now - flow.epoch_ps < rtt_ps:
        return
    flow.acked, flow.epoch_ps = 0, now
    if flow.previous == 0.0:
        flow.previous = float(rtt_ps)
        return
    flow.gradient += WEIGHT * ((rtt_ps - flow.previous) - flow.gradient)
    flow.previous = float(rtt_ps)
    normalised = flow.gradient / flow.base_rtt_ps
    rate = flow.rate_bps
    if rtt_ps < LOW_PS:
        rate += STEP_BPS
    elif rtt_ps > HIGH_PS:
        rate *= 1 - BETA * (1 - HIGH_PS / rtt_ps)
        flow.stage = 0
    elif normalised <= 0:
        flow.stage += 1
        rate += STEP_BPS * (HYPER_AFTER if flow.stage >= HYPER_AFTER else 1)
    else:
        rate *= 1 - BETA * min(normalised, 1.0)
        flow.stage = 0
    flow.rate_bps = min(max(rate, LOWEST_BPS), flow.line_bps)
