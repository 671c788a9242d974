"""A port's next packet: from its queues, or from the flows that start at it, paced and within their windows."""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import (
    ARRIVE,
    CONTROL,
    CREDITS,
    DATA,
    FREE,
    HPCC,
    NOBODY,
    NUM_PRIORITIES,
    PS_PER_S,
    SELECTIVE,
    TIMEOUT,
    WAKE,
    Simulated,
    make_packet,
    schedule,
)  # fmt: skip
from fabric.simulated.engine.switching import dequeue
from fabric.simulated.transports.dispatch import on_sent

NEVER = 2**62


@inlined
def serve(sim: Simulated, link: int, now: int) -> None:
    """Start the port's next transmission if it is idle and something may go.

    Queues and flows of one priority take turns; else the better priority goes first.
    """
    port = sim.ports[link]
    if port.busy == 1 or port.up == 0:
        return
    queued = _best_queue(sim, link)
    number = NOBODY
    if port.ring != NOBODY and queued != CONTROL:
        number = _own_packet(sim, link, queued, now)
    if number == NOBODY and queued < NUM_PRIORITIES:
        number = dequeue(sim, link, queued, now)
        port.turn = 1
    elif number != NOBODY:
        port.turn = 0
    if number != NOBODY:
        _transmit(sim, number, link, now)


@inlined
def _best_queue(sim: Simulated, link: int) -> int:
    """The best priority with a packet that may go; NUM_PRIORITIES if none."""
    if sim.ports[link].queued == 0:
        return NUM_PRIORITIES
    for priority in range(NUM_PRIORITIES):
        queue = sim.queues[link * NUM_PRIORITIES + priority]
        if queue.first != NOBODY and queue.paused == 0:
            if priority != CONTROL and _lacks_credit(sim, link, sim.packets[queue.first].size):
                continue
            return priority
    return NUM_PRIORITIES


@inlined
def _lacks_credit(sim: Simulated, link: int, size: int) -> bool:
    return bool(sim.setting[0].flow_control == CREDITS and sim.ports[link].credits < size)


@inlined
def _own_packet(sim: Simulated, link: int, queued: int, now: int) -> int:
    """A packet of the next flow in the ring that may send now; if none may, a wake-up for the first that will."""
    port = sim.ports[link]
    first, wake = port.ring, NEVER
    number, chosen = first, NOBODY
    while True:
        flow = sim.flows[number]
        number = flow.next_flow
        may = sim.queues[link * NUM_PRIORITIES + flow.priority].paused == 0 and _wants(sim, flow.number)
        if may and not _lacks_credit(sim, link, flow.packet_bytes):
            if flow.next_send_ps <= now:
                first_in_line = flow.priority < queued or (flow.priority == queued and port.turn == 1)
                if (queued == NUM_PRIORITIES or first_in_line) and (
                    chosen == NOBODY or flow.priority < sim.flows[chosen].priority
                ):
                    chosen = flow.number
                    if flow.priority == CONTROL + 1:  # none is better
                        break
            else:
                wake = min(wake, flow.next_send_ps)
        if number == first:
            break
    if chosen != NOBODY:
        port.ring = sim.flows[chosen].next_flow
        return _next_packet(sim, chosen, now)
    if wake < NEVER and (port.wake_ps <= now or wake < port.wake_ps):
        port.wake_ps = wake
        schedule(sim, wake, WAKE, link)
    return NOBODY


@inlined
def _wants(sim: Simulated, number: int) -> bool:
    """Whether a flow has something to send that its window allows."""
    flow = sim.flows[number]
    if flow.started == 0 or flow.una >= flow.num_packets:
        return False
    if flow.resend != NOBODY or _hole(sim, number) != NOBODY:
        return True
    return bool(flow.next_seq < flow.num_packets and flow.next_seq - flow.una < max(flow.window, 1.0))


@inlined
def _hole(sim: Simulated, number: int) -> int:
    """With selective repeat, in recovery: the next packet that later ones have overtaken."""
    flow = sim.flows[number]
    if flow.reliability != SELECTIVE or flow.recovering == 0:
        return NOBODY
    flow.scan = max(flow.scan, flow.una)
    while flow.scan < flow.highest:
        if sim.acked[flow.marks_at + flow.scan] == 0:
            return flow.scan  # type: ignore[no-any-return]
        flow.scan += 1
    return NOBODY


@inlined
def _next_packet(sim: Simulated, number: int, now: int) -> int:
    """Make the flow's next data packet: a demanded one, a hole, or a new one."""
    flow, clock = sim.flows[number], sim.clock[0]
    hole = _hole(sim, number)
    if flow.resend != NOBODY:
        seq = flow.resend
        flow.resend = NOBODY
        flow.resent += 1
    elif hole != NOBODY:
        seq = hole
        flow.scan = hole + 1
        flow.resent += 1
    else:
        seq = flow.next_seq
        flow.next_seq += 1
    size = flow.last_bytes if seq == flow.num_packets - 1 else flow.packet_bytes
    packet = make_packet(sim, number, DATA, size, now)
    sim.packets[packet].seq = seq
    clock.data_sent += 1
    flow.sent += 1
    # a flow that came late may catch up by one packet, no more: a paced flow stays paced
    gap = int(size * 8 * PS_PER_S / flow.rate_bps)
    flow.next_send_ps = max(flow.next_send_ps, now - gap) + gap
    on_sent(sim, number, size, now)
    arm_timeout(sim, number, now)
    return packet


@inlined
def arm_timeout(sim: Simulated, number: int, now: int) -> None:
    """See to it that an event is pending no later than the timeout is due; one that comes too early is put off."""
    flow = sim.flows[number]
    if flow.timeout_ps == 0:
        return
    if flow.timeout_due_ps == 0:
        flow.timeout_due_ps = now + flow.timeout_ps
    if flow.timeout_event_ps == 0 or flow.timeout_due_ps < flow.timeout_event_ps:
        flow.timeout_event_ps = flow.timeout_due_ps
        schedule(sim, flow.timeout_due_ps, TIMEOUT, number)


@inlined
def _transmit(sim: Simulated, number: int, link: int, now: int) -> None:
    packet, port = sim.packets[number], sim.ports[link]
    packet.link = link
    if packet.kind == DATA:
        if sim.setting[0].flow_control == CREDITS:
            port.credits -= packet.size
        if sim.flows[packet.flow].transport == HPCC:
            hop = sim.telemetry[number, packet.hop]
            hop[0], hop[1], hop[2] = port.queued, port.tx_bytes, now
    port.tx_bytes += packet.size
    taken_ps = int(packet.size * port.ps_per_byte)
    port.busy = 1
    schedule(sim, now + taken_ps, FREE, link)
    schedule(sim, now + taken_ps + port.delay_ps, ARRIVE, number)
