"""RoCE and RoCEv2 without congestion control: line rate from the start, PFC below, go-back-N after a loss.

Sources: IBTA annexes A16 (RoCE) and A17 (RoCEv2); Guo et al., RDMA over Commodity Ethernet at Scale, SIGCOMM 2016.
RoCE is bound to layer 2: all flows of a pair of hosts take one path, and its header carries a GRH of 40 bytes in place
of IP and UDP of 28. A NACK or a timeout of 4 ms sends everything from the missing packet on again.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import NOBODY, ROCE, ROCE_V2, Simulated
from fabric.simulated.switches import FlowControl
from fabric.simulated.transports.spec import Reliability, TransportSpec

TIMEOUT_S = 4e-3
# a frame's own header and checksum, and the preamble and gap that go with it on the wire, as in TCP's 78
FRAME_BYTES, GRH_BYTES, IP_UDP_BYTES, BTH_ICRC_BYTES = 18 + 20, 40, 28, 16

SPEC = TransportSpec(
    "roce", ROCE, "IBTA annex A16", Reliability.GO_BACK_N, FlowControl.PFC, 1024,
    FRAME_BYTES + GRH_BYTES + BTH_ICRC_BYTES, timeout_s=TIMEOUT_S, is_routed=False,
)  # fmt: skip
SPEC_V2 = TransportSpec(
    "roce-v2", ROCE_V2, "IBTA annex A17", Reliability.GO_BACK_N, FlowControl.PFC, 1024,
    FRAME_BYTES + IP_UDP_BYTES + BTH_ICRC_BYTES, timeout_s=TIMEOUT_S,
)  # fmt: skip


@inlined
def on_timeout(sim: Simulated, number: int) -> None:
    flow = sim.flows[number]
    flow.resent += flow.next_seq - flow.una
    flow.next_seq, flow.resend = flow.una, NOBODY
