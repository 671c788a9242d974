"""IRN: RDMA without PFC, by selective repeat and a window of one bandwidth-delay product.

Paper: Mittal et al., Revisiting Network Support for RDMA, SIGCOMM 2018, section 3. At most BDP/packet packets are in
flight (BDP-FC). A packet out of order makes a NACK with the cumulative acknowledgement and the packet that caused it;
the sender resends every packet that later ones have overtaken, then new ones, until all sent before is acknowledged.
Timeouts: 100 µs with up to 3 packets in flight, else 320 µs.
"""

from __future__ import annotations

from math import ceil

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import IRN, PS_PER_S, PS_PER_US, Simulated
from fabric.simulated.switches import FlowControl
from fabric.simulated.transports import roce
from fabric.simulated.transports.spec import Reliability, TransportSpec

LOW_PS = 100 * PS_PER_US
HIGH_PS = 320 * PS_PER_US
FEW_PACKETS = 3

SPEC = TransportSpec(
    "irn", IRN, "Mittal et al., SIGCOMM 2018", Reliability.SELECTIVE, FlowControl.LOSSY, 1024,
    roce.SPEC_V2.header_bytes, timeout_s=HIGH_PS / PS_PER_S,
)  # fmt: skip


@inlined
def on_start(sim: Simulated, number: int) -> None:
    flow = sim.flows[number]
    flow.window = float(ceil(flow.line_bps / 8 * flow.base_rtt_ps / PS_PER_S / flow.packet_bytes))


@inlined
def choose_timeout(sim: Simulated, number: int) -> None:
    flow = sim.flows[number]
    flow.timeout_ps = LOW_PS if flow.next_seq - flow.una <= FEW_PACKETS else HIGH_PS


@inlined
def on_timeout(sim: Simulated, number: int) -> None:
    flow = sim.flows[number]
    flow.recovering, flow.recover, flow.scan = 1, flow.next_seq - 1, flow.una + 1
    flow.resend = flow.una
