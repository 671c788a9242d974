"""DCQCN+: DCQCN whose intervals and steps follow the scale of the incast.

Paper: Gao et al., DCQCN+: Taming Large-scale Incast Congestion in RDMA over Ethernet Networks, ICNP 2018. Written from
its description; no public code was compared. The receiver's host spaces the CNPs of all its congested flows, so that
a flow's interval grows with their number, and writes the interval into them. The sender takes it as the period of its
timers, and divides its additive step by how much longer than DCQCN's it is.

Differs from the paper: its exponents per event are left out; a host counts its congested flows over epochs of 500 µs.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import DCQCN_PLUS, PS_PER_US, Simulated
from fabric.simulated.switches import FlowControl, Marking
from fabric.simulated.transports import dcqcn, roce
from fabric.simulated.transports.spec import Reliability, TransportSpec

SPACING_PS = 5 * PS_PER_US  # between any two CNPs of a host: ten congested flows keep DCQCN's interval
EPOCH_PS = 500 * PS_PER_US  # over which a host counts them

SPEC = TransportSpec(
    "dcqcn-plus", DCQCN_PLUS, "Gao et al., ICNP 2018 (from the description)", Reliability.GO_BACK_N, FlowControl.PFC,
    1024, roce.SPEC_V2.header_bytes, marking=Marking(5e3, 200e3, 0.01), timeout_s=roce.TIMEOUT_S,
)  # fmt: skip


@inlined
def interval_ps(sim: Simulated, number: int, host: int, now: int) -> int:
    """How long a flow waits between CNPs: `SPACING_PS` for each flow that this host receives congested."""
    node, flow = sim.nodes[host], sim.flows[number]
    if now - node.epoch_ps > EPOCH_PS:
        node.epoch_ps, node.congested_before, node.congested = now, node.congested, 0
    if flow.congested_ps < node.epoch_ps or node.congested == 0:
        node.congested += 1
    flow.congested_ps = now
    return max(dcqcn.CNP_INTERVAL_PS, int(SPACING_PS * max(node.congested, node.congested_before)))


@inlined
def on_cnp(sim: Simulated, number: int, interval: float, now: int) -> None:
    sim.flows[number].interval_ps = interval * dcqcn.TIMER_PS / dcqcn.CNP_INTERVAL_PS
    dcqcn.on_cnp(sim, number, now)


@inlined
def on_rate_timer(sim: Simulated, number: int, now: int) -> None:
    flow = sim.flows[number]
    slower = flow.interval_ps / dcqcn.TIMER_PS
    flow.time_count += 1
    flow.rate_due_ps = now + int(flow.interval_ps)
    dcqcn.increase(sim, number, dcqcn.ADDITIVE_BPS / slower, dcqcn.HYPER_BPS / slower)
