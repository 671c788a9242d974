"""The event loop. It stops at a time, when all flows are done, or when a pool must grow; it can always go on."""

from __future__ import annotations

from fabric.simulated.compiled import entry_point, inlined
from fabric.simulated.engine.receiving import take_in
from fabric.simulated.engine.sending import arm_timeout, serve
from fabric.simulated.engine.state import (
    ALPHA_TIMER,
    ARRIVE,
    CREDIT,
    CREDIT_BITS,
    FREE,
    KIND_BITS,
    KIND_MASK,
    NOBODY,
    NUM_PRIORITIES,
    PAUSE,
    RATE_TIMER,
    RESUME,
    START,
    TIMEOUT,
    Simulated,
    link_at,
    schedule,
)  # fmt: skip
from fabric.simulated.engine.switching import enqueue
from fabric.simulated.heap import drop_first
from fabric.simulated.transports.dispatch import on_alpha_timer, on_rate_timer, on_start, on_timeout

REACHED, OUT_OF_ROOM, ALL_DONE, IDLE = 0, 1, 2, 3
SPARE_PACKETS, SPARE_EVENTS = 4, 16  # more than one event can take


@entry_point(allocates=False)
def run_until(sim: Simulated, until_ps: int) -> int:
    """Process all events up to `until_ps`; return why it stopped."""
    clock = sim.clock[0]
    num_flows = len(sim.flows)
    while clock.heap_size > 0:
        if clock.num_free < SPARE_PACKETS or clock.heap_size + SPARE_EVENTS > len(sim.keys):
            return OUT_OF_ROOM
        now, code = sim.keys[0], sim.codes[0]
        if now > until_ps:
            clock.now_ps = until_ps
            return REACHED
        clock.heap_size = drop_first(sim.keys, sim.codes, clock.heap_size)
        clock.now_ps = now
        clock.num_events += 1
        kind, subject = code & KIND_MASK, code >> KIND_BITS
        if kind == ARRIVE:
            link = _arrive(sim, subject, now)
        elif kind == FREE:
            sim.ports[subject].busy = 0
            link = subject
        else:
            link = _other(sim, kind, subject, now)
        if link != NOBODY:
            serve(sim, link, now)
        if clock.num_done == num_flows:
            return ALL_DONE
    return IDLE


@inlined
def _arrive(sim: Simulated, number: int, now: int) -> int:
    """A packet is at the end of a link: its own end, or a switch or server that forwards it."""
    packet = sim.packets[number]
    if packet.hop == sim.flows[packet.flow].path_len - 1:
        return take_in(sim, number, now)
    packet.ingress = packet.link
    packet.hop += 1
    link = link_at(sim, number)
    enqueue(sim, number, link, now)
    return link


@inlined
def _other(sim: Simulated, kind: int, subject: int, now: int) -> int:
    """All rarer events; return the link that may have something to send now."""
    if kind in (PAUSE, RESUME):
        queue = sim.queues[subject]
        if kind == PAUSE and queue.paused == 0:
            queue.paused, queue.paused_since_ps = 1, now
        elif kind == RESUME and queue.paused == 1:
            queue.paused = 0
            queue.paused_ps += now - queue.paused_since_ps
        return subject // NUM_PRIORITIES
    if kind == CREDIT:
        link = subject >> CREDIT_BITS
        sim.ports[link].credits += subject & ((1 << CREDIT_BITS) - 1)
        return link
    if kind == START:
        sim.flows[subject].started = 1
        on_start(sim, subject, now)
    elif kind == TIMEOUT:
        _time_out(sim, subject, now)
    elif kind in (ALPHA_TIMER, RATE_TIMER):
        _tick(sim, kind, subject, now)
    else:  # WAKE: the subject is the link itself
        return subject
    return sim.flows[subject].first_link  # type: ignore[no-any-return]


@inlined
def _time_out(sim: Simulated, number: int, now: int) -> None:
    """Nothing was acknowledged for too long: go back to what is missing; early events are put off."""
    flow = sim.flows[number]
    if now != flow.timeout_event_ps:
        return  # another event has taken its place
    flow.timeout_event_ps = 0
    if flow.una >= flow.num_packets or flow.next_seq == flow.una:
        flow.timeout_due_ps = 0
        return
    if now >= flow.timeout_due_ps > 0:
        flow.num_timeouts += 1
        on_timeout(sim, number, now)
        flow.timeout_due_ps = now + flow.timeout_ps
    arm_timeout(sim, number, now)


@inlined
def _tick(sim: Simulated, kind: int, number: int, now: int) -> None:
    """A transport's timer: put off if it was set anew, gone if the flow is done."""
    flow = sim.flows[number]
    if flow.una >= flow.num_packets:
        return
    due = flow.alpha_due_ps if kind == ALPHA_TIMER else flow.rate_due_ps
    if due > now:
        schedule(sim, due, kind, number)
    elif kind == ALPHA_TIMER:
        on_alpha_timer(sim, number, now)
        schedule(sim, flow.alpha_due_ps, kind, number)
    else:
        on_rate_timer(sim, number, now)
        schedule(sim, flow.rate_due_ps, kind, number)
