"""DCQCN: ECN marks make the receiver notify the sender, which cuts its rate and climbs back as QCN does.

Paper: Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015, section 3 and figure 14.
- Switch: RED marking, K_min 5 KB, K_max 200 KB, P_max 1 %.
- Receiver: at most one CNP per flow per 50 µs.
- Sender: CNP: R_T = R_C, R_C = R_C(1 − α/2), α = (1 − g)α + g. No CNP for 55 µs: α = (1 − g)α. g = 1/256.
- Increase, by a timer of 55 µs and a counter of 10 MB, T and B times since the cut: R_C = (R_T + R_C)/2; from
  max(T, B) = F = 5 on first R_T += 40 Mbit/s (additive), or R_T += 400 Mbit/s if min(T, B) > F (hyper).
Fixed point R = C/N.

Differs from the paper: it gives no hyper step, 400 Mbit/s is ours; acknowledgements come per packet.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import ALPHA_TIMER, DCQCN, PS_PER_US, RATE_TIMER, Simulated, schedule
from fabric.simulated.switches import FlowControl, Marking
from fabric.simulated.transports import roce
from fabric.simulated.transports.spec import Reliability, TransportSpec

G = 1 / 256
CNP_INTERVAL_PS = 50 * PS_PER_US
TIMER_PS = 55 * PS_PER_US
COUNTER_BYTES = 10e6
FAST_STEPS = 5
ADDITIVE_BPS = 40e6
HYPER_BPS = 400e6
LOWEST_BPS = 10e6

SPEC = TransportSpec(
    "dcqcn", DCQCN, "Zhu et al., SIGCOMM 2015", Reliability.GO_BACK_N, FlowControl.PFC, 1024, roce.SPEC_V2.header_bytes,
    marking=Marking(5e3, 200e3, 0.01), timeout_s=roce.TIMEOUT_S,
)  # fmt: skip


@inlined
def on_start(sim: Simulated, number: int) -> None:
    flow = sim.flows[number]
    flow.alpha, flow.target, flow.interval_ps = 1.0, flow.rate_bps, float(TIMER_PS)


@inlined
def on_cnp(sim: Simulated, number: int, now: int) -> None:
    flow = sim.flows[number]
    flow.target = flow.rate_bps
    flow.rate_bps = max(flow.rate_bps * (1 - flow.alpha / 2), LOWEST_BPS)
    flow.alpha += G * (1 - flow.alpha)
    flow.time_count, flow.byte_count, flow.byte_sum = 0, 0, 0.0
    flow.alpha_due_ps, flow.rate_due_ps = now + int(flow.interval_ps), now + int(flow.interval_ps)
    if flow.timers == 0:
        flow.timers = 1
        schedule(sim, flow.alpha_due_ps, ALPHA_TIMER, number)
        schedule(sim, flow.rate_due_ps, RATE_TIMER, number)


@inlined
def on_alpha_timer(sim: Simulated, number: int, now: int) -> None:
    flow = sim.flows[number]
    flow.alpha *= 1 - G
    flow.alpha_due_ps = now + int(flow.interval_ps)


@inlined
def on_rate_timer(sim: Simulated, number: int, now: int) -> None:
    flow = sim.flows[number]
    flow.time_count += 1
    flow.rate_due_ps = now + int(flow.interval_ps)
    increase(sim, number, ADDITIVE_BPS, HYPER_BPS)


@inlined
def on_sent(sim: Simulated, number: int, size: int) -> None:
    flow = sim.flows[number]
    if flow.timers == 0:
        return
    flow.byte_sum += size
    if flow.byte_sum >= COUNTER_BYTES:
        flow.byte_sum -= COUNTER_BYTES
        flow.byte_count += 1
        increase(sim, number, ADDITIVE_BPS, HYPER_BPS)


@inlined
def increase(sim: Simulated, number: int, additive_bps: float, hyper_bps: float) -> None:
    """One step of fast recovery, additive or hyper increase."""
    flow = sim.flows[number]
    if min(flow.time_count, flow.byte_count) > FAST_STEPS:
        flow.target += hyper_bps
    elif max(flow.time_count, flow.byte_count) >= FAST_STEPS:
        flow.target += additive_bps
    flow.target = min(flow.target, flow.line_bps)
    flow.rate_bps = (flow.rate_bps + flow.target) / 2
