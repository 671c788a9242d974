"""InfiniBand: links with credits, line-rate senders, no congestion control.

Source: InfiniBand Architecture Specification 1.4, section 7.9. A link's transmitter sends what the receiver has
buffers for, in blocks of 64 bytes; so throughput is min(C, credits·64 B/RTT of the link) and nothing is dropped: a
switch's buffer must hold the credits of all its links.
The engine's links do that; a flow has no window and no rate below the line's. 2 KiB packets with 30 bytes of headers
(LRH 8, BTH 12, ICRC 4, VCRC 2, and 4 for the link's framing).
"""

from __future__ import annotations

from fabric.simulated.engine.state import INFINIBAND
from fabric.simulated.switches import FlowControl
from fabric.simulated.transports.spec import Reliability, TransportSpec

SPEC = TransportSpec(
    "infiniband",
    INFINIBAND,
    "IBTA specification 1.4, section 7.9",
    Reliability.GO_BACK_N,
    FlowControl.CREDITS,
    2048,
    30,
)
