"""DCTCP: the window shrinks by the share of marked packets.

Paper: Alizadeh et al., Data Center TCP, SIGCOMM 2010, section 3. Per window of data α = (1 − g)α + g·F, F the share of
packets that came back marked; a window with a mark in it ends with W·(1 − α/2). g = 1/16; the switch marks above K:
65 packets at 10 Gbit/s, 20 at 1 Gbit/s (section 3.3; here 65 as default). Losses as in `tcp`.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import DCTCP, Simulated
from fabric.simulated.switches import FlowControl, Marking
from fabric.simulated.transports import tcp
from fabric.simulated.transports.spec import Reliability, TransportSpec

G = 1 / 16
MARK_FROM_PACKETS = 65

SPEC = TransportSpec(
    "dctcp", DCTCP, "Alizadeh et al., SIGCOMM 2010", Reliability.NEW_RENO, FlowControl.LOSSY, 1460, 78,
    marking=Marking(MARK_FROM_PACKETS * 1538.0, MARK_FROM_PACKETS * 1538.0), timeout_s=tcp.FIRST_TIMEOUT_S,
)  # fmt: skip


@inlined
def on_start(sim: Simulated, number: int) -> None:
    tcp.on_start(sim, number)
    sim.flows[number].alpha = 1.0


@inlined
def on_ack(sim: Simulated, number: int, newly: int, marked: int) -> None:
    flow = sim.flows[number]
    flow.acked += 1
    flow.marked += marked
    if marked == 1 and flow.window < flow.threshold:
        flow.threshold = flow.window  # slow start ends with the first mark
    if flow.una > flow.window_end:
        flow.alpha += G * (flow.marked / flow.acked - flow.alpha)
        if flow.marked > 0 and flow.recovering == 0:
            flow.window = max(flow.window * (1 - flow.alpha / 2), 1.0)
            flow.threshold = flow.window
        flow.window_end, flow.acked, flow.marked = flow.next_seq, 0, 0
    tcp.on_ack(sim, number, newly)
