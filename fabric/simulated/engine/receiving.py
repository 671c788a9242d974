"""What hosts do with packets that have arrived: acknowledge data, and tell the sender's transport.

- Go-back-N: a packet out of order is thrown away, and one NACK names what is expected.
- New Reno and selective repeat keep it. Every packet is acknowledged cumulatively; a selective NACK also names the
  packet that caused it (Mittal et al., IRN, SIGCOMM 2018, section 3.1).

A data packet's record becomes its acknowledgement, with its marks, stamp and telemetry.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.sending import arm_timeout
from fabric.simulated.engine.state import (
    ACK,
    CNP,
    CONTROL,
    CREDITS,
    DATA,
    DCQCN,
    DCQCN_PLUS,
    GO_BACK_N,
    NACK,
    NEW_RENO,
    NOBODY,
    SELECTIVE,
    Simulated,
    free_packet,
    link_at,
    make_packet,
)  # fmt: skip
from fabric.simulated.engine.switching import enqueue, return_credit
from fabric.simulated.transports import dcqcn, dcqcn_plus, irn, tcp
from fabric.simulated.transports.dispatch import on_ack, on_cnp


@inlined
def take_in(sim: Simulated, number: int, now: int) -> int:
    """A packet is at its end; return the link that may have something to send now, or NOBODY."""
    packet = sim.packets[number]
    if packet.kind == DATA:
        return _take_data(sim, number, now)
    kick = sim.flows[packet.flow].first_link
    if packet.kind == CNP:
        on_cnp(sim, packet.flow, packet.note, now)
    else:
        _take_ack(sim, number, now)
    sim.clock[0].num_taken += 1
    free_packet(sim, number)
    return kick  # type: ignore[no-any-return]


@inlined
def _take_data(sim: Simulated, number: int, now: int) -> int:
    packet = sim.packets[number]
    flow, clock = sim.flows[packet.flow], sim.clock[0]
    clock.data_received += 1
    if sim.setting[0].flow_control == CREDITS:
        return_credit(sim, packet.link, packet.size, now)
    _tell_marks(sim, number, now)
    is_answered = True
    kind = ACK
    if flow.reliability == GO_BACK_N:
        if packet.seq == flow.expected:
            flow.expected += 1
            flow.nacked = 0
        elif packet.seq > flow.expected:
            is_answered, kind = flow.nacked == 0, NACK
            flow.nacked = 1
    else:
        sim.arrived[flow.marks_at + packet.seq] = 1
        if packet.seq == flow.expected:
            while flow.expected < flow.num_packets and sim.arrived[flow.marks_at + flow.expected] == 1:
                flow.expected += 1
        elif packet.seq > flow.expected:
            kind = NACK
    if flow.expected == flow.num_packets and flow.end_ps < 0:
        flow.end_ps = now
        clock.num_done += 1
    clock.num_taken += 1
    if not is_answered:
        free_packet(sim, number)
        return NOBODY
    clock.num_made += 1
    packet.kind, packet.priority, packet.size = kind, CONTROL, sim.setting[0].ack_bytes
    packet.ack, packet.hop, packet.ingress = flow.expected, 0, NOBODY
    link = link_at(sim, number)
    enqueue(sim, number, link, now)
    return link


@inlined
def _tell_marks(sim: Simulated, number: int, now: int) -> None:
    """DCQCN's receiver: a marked packet makes a notification, unless one was sent just before."""
    packet = sim.packets[number]
    flow = sim.flows[packet.flow]
    if packet.marked == 0 or (flow.transport != DCQCN and flow.transport != DCQCN_PLUS):
        return
    interval = dcqcn.CNP_INTERVAL_PS
    if flow.transport == DCQCN_PLUS:
        interval = dcqcn_plus.interval_ps(sim, packet.flow, sim.ports[packet.link].head, now)
    if now - flow.cnp_ps < interval:
        return
    flow.cnp_ps = now
    notice = make_packet(sim, packet.flow, CNP, sim.setting[0].ack_bytes, now)
    sim.packets[notice].note = float(interval)
    enqueue(sim, notice, link_at(sim, notice), now)


@inlined
def _take_ack(sim: Simulated, number: int, now: int) -> None:
    packet = sim.packets[number]
    flow = sim.flows[packet.flow]
    rtt = now - packet.stamp
    flow.rtt_sum_ps += rtt
    flow.num_rtts += 1
    newly = packet.ack - flow.una
    if flow.reliability == SELECTIVE:
        sim.acked[flow.marks_at + packet.seq] = 1
        flow.highest = max(flow.highest, packet.seq)
    if newly > 0:
        flow.una = packet.ack
        flow.next_seq = max(flow.next_seq, flow.una)
        flow.timeout_due_ps = 0
        if flow.reliability == SELECTIVE:
            irn.choose_timeout(sim, packet.flow)
        if flow.una < flow.num_packets:
            arm_timeout(sim, packet.flow, now)
    if flow.reliability == NEW_RENO:
        tcp.recover(sim, packet.flow, newly, now)
    elif packet.kind == NACK:
        _repair(sim, packet.flow)
    if flow.reliability == SELECTIVE and flow.recovering == 1 and flow.una > flow.recover:
        flow.recovering = 0
    on_ack(sim, number, max(newly, 0), rtt, now)


@inlined
def _repair(sim: Simulated, number: int) -> None:
    """A NACK has come: go back, or enter recovery. No transport here slows down for it; their papers do not."""
    flow = sim.flows[number]
    if flow.reliability == GO_BACK_N:
        flow.resent += flow.next_seq - flow.una
        flow.next_seq = flow.una
    elif flow.recovering == 0:
        flow.recovering, flow.recover, flow.scan = 1, flow.next_seq - 1, flow.una
