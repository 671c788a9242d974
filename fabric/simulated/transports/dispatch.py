"""Which transport's function answers an event: the one place where the compiled code tells transports apart.

A new transport is a file with a `SPEC` and its functions, a number in `engine.state`, and its lines here.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import (
    CUBIC,
    DCQCN,
    DCQCN_PLUS,
    DCTCP,
    GO_BACK_N,
    HPCC,
    IRN,
    NEW_RENO,
    TIMELY,
    Simulated,
)  # fmt: skip
from fabric.simulated.transports import cubic, dcqcn, dcqcn_plus, dctcp, hpcc, irn, roce, tcp, timely


@inlined
def on_start(sim: Simulated, number: int, now: int) -> None:
    """A flow begins; it has line rate and an endless window until its transport says otherwise."""
    flow = sim.flows[number]
    if flow.transport == DCTCP:
        dctcp.on_start(sim, number)
    elif flow.reliability == NEW_RENO:
        tcp.on_start(sim, number)
    elif flow.transport == DCQCN or flow.transport == DCQCN_PLUS:
        dcqcn.on_start(sim, number)
    elif flow.transport == HPCC:
        hpcc.on_start(sim, number)
    elif flow.transport == IRN:
        irn.on_start(sim, number)
    if flow.reliability == NEW_RENO:
        flow.reference = cubic.BETA if flow.transport == CUBIC else 0.5  # what a loss leaves of the window


@inlined
def on_ack(sim: Simulated, packet: int, newly: int, rtt_ps: int, now: int) -> None:
    """An acknowledgement, also a negative one, of `newly` more packets."""
    number = sim.packets[packet].flow
    flow = sim.flows[number]
    if flow.reliability == NEW_RENO:
        tcp.measure(sim, number, rtt_ps)
        if flow.transport == DCTCP:
            dctcp.on_ack(sim, number, newly, sim.packets[packet].marked)
        elif flow.transport == CUBIC:
            cubic.on_ack(sim, number, newly, now)
        else:
            tcp.on_ack(sim, number, newly)
    elif flow.transport == TIMELY:
        timely.on_ack(sim, number, newly, rtt_ps, now)
    elif flow.transport == HPCC:
        hpcc.on_ack(sim, packet, now)


@inlined
def on_cnp(sim: Simulated, number: int, note: float, now: int) -> None:
    """A congestion notification."""
    if sim.flows[number].transport == DCQCN_PLUS:
        dcqcn_plus.on_cnp(sim, number, note, now)
    else:
        dcqcn.on_cnp(sim, number, now)


@inlined
def on_timeout(sim: Simulated, number: int, now: int) -> None:
    """Nothing was acknowledged for a timeout."""
    flow = sim.flows[number]
    if flow.reliability == GO_BACK_N:
        roce.on_timeout(sim, number)
    elif flow.reliability == NEW_RENO:
        tcp.on_timeout(sim, number)
    else:
        irn.on_timeout(sim, number)


@inlined
def on_sent(sim: Simulated, number: int, size: int, now: int) -> None:
    """A data packet leaves its flow."""
    transport = sim.flows[number].transport
    if transport in (DCQCN, DCQCN_PLUS):
        dcqcn.on_sent(sim, number, size)
    elif transport == IRN:
        irn.choose_timeout(sim, number)


@inlined
def on_alpha_timer(sim: Simulated, number: int, now: int) -> None:
    """The first of a transport's timers; it must set the next one's time."""
    dcqcn.on_alpha_timer(sim, number, now)


@inlined
def on_rate_timer(sim: Simulated, number: int, now: int) -> None:
    """The second one."""
    if sim.flows[number].transport == DCQCN_PLUS:
        dcqcn_plus.on_rate_timer(sim, number, now)
    else:
        dcqcn.on_rate_timer(sim, number, now)
