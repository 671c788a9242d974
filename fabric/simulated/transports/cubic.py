"""TCP CUBIC: the window follows a cubic curve of the time since the last loss.

Source: RFC 8312 (Ha, Rhee and Xu, CUBIC, SIGOPS OSR 2008). C = 0.4, β = 0.7.
W(t) = C·(t − K)³ + W_max with K = ∛(W_max(1 − β)/C); never below Reno's estimate W_max·β + 3(1 − β)/(1 + β)·t/RTT.
After a timeout W_max is the window where congestion avoidance begins, and K = 0 (section 4.7). Losses are found and
repaired as in `tcp`.

Differs from the RFC: no fast convergence.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import CUBIC, PS_PER_S, Simulated
from fabric.simulated.switches import FlowControl
from fabric.simulated.transports import tcp
from fabric.simulated.transports.spec import Reliability, TransportSpec

C = 0.4
BETA = 0.7

SPEC = TransportSpec(
    "cubic", CUBIC, "RFC 8312", Reliability.NEW_RENO, FlowControl.LOSSY, 1460, 78, timeout_s=tcp.FIRST_TIMEOUT_S
)


@inlined
def on_ack(sim: Simulated, number: int, newly: int, now: int) -> None:
    flow = sim.flows[number]
    if not tcp.may_grow(sim, number, newly) or tcp.slow_start(sim, number, newly):
        return
    if flow.epoch_ps < 0:
        flow.epoch_ps = now
        flow.interval_ps = (flow.peak * (1 - BETA) / C) ** (1 / 3) * PS_PER_S
        flow.peak = max(flow.peak, flow.window)
    elapsed_s, rtt_s = (now - flow.epoch_ps) / PS_PER_S, flow.srtt_ps / PS_PER_S
    wanted = C * (elapsed_s + rtt_s - flow.interval_ps / PS_PER_S) ** 3 + flow.peak
    reno = flow.peak * BETA + 3 * (1 - BETA) / (1 + BETA) * elapsed_s / max(rtt_s, 1e-9)
    if reno > max(wanted, flow.window):
        flow.window = reno
    elif wanted > flow.window:
        flow.window += newly * (wanted - flow.window) / flow.window
