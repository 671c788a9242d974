"""Output queues with strict priorities, a shared buffer, ECN marking, PFC and link credits.

- Shared buffer: a queue may hold up to `share` times what is free (Choudhury and Hahne, IEEE/ACM ToN 1998).
- Marking as in RED on the queue's present length: nothing below `mark_from` bytes, everything above `mark_all`,
  in between up to `mark_most` of the packets (Zhu et al., DCQCN, SIGCOMM 2015, figure 5).
- PFC (IEEE 802.1Qbb): bytes are counted per ingress link and priority; above `xoff_bytes` the upstream transmitter is
  told to pause that priority, at `xon_bytes` to go on. The frame takes its own 64 bytes and the cable's delay.
- Credits (InfiniBand, IBTA 1.4 section 7.9): a transmitter sends only what the receiving buffer has room for.

On lossless links nothing is dropped: `packet` refuses thresholds and credits that could overfill a buffer.
Differs from hardware: a packet leaves the buffer's account when its transmission starts, and on lossless links control
packets do not enter it.
"""

from __future__ import annotations

from fabric.simulated.compiled import inlined
from fabric.simulated.engine.state import (
    CONTROL,
    CREDIT,
    CREDIT_BITS,
    CREDITS,
    DATA,
    LOSSY,
    NOBODY,
    NUM_PRIORITIES,
    PAUSE,
    PFC,
    RESUME,
    Simulated,
    draw,
    free_packet,
    schedule,
)  # fmt: skip

PAUSE_FRAME_BYTES = 64


@inlined
def enqueue(sim: Simulated, number: int, link: int, now: int) -> None:
    """Queue a packet for `link`, or drop it. A host's own control packets have no ingress."""
    packet, port, setting = sim.packets[number], sim.ports[link], sim.setting[0]
    node, queue = sim.nodes[port.tail], sim.queues[link * NUM_PRIORITIES + packet.priority]
    packet.link = link
    if packet.priority != CONTROL and packet.ingress != NOBODY:
        if _is_refused(sim, number, link):
            _drop(sim, number, link)
            return
        _mark(sim, number, link)
    if _takes_room(sim, packet.priority):
        node.used += packet.size
    if packet.ingress != NOBODY and setting.flow_control == PFC and packet.priority != CONTROL:
        _count_in(sim, packet.ingress, packet.priority, packet.size, now)
    packet.next = NOBODY
    if queue.first == NOBODY:
        queue.first = number
    else:
        sim.packets[queue.last].next = number
    queue.last = number
    queue.bytes += packet.size
    _note_length(sim, link, packet.size, now)


@inlined
def dequeue(sim: Simulated, link: int, priority: int, now: int) -> int:
    """Take the first packet off a queue, and give its room back upstream."""
    queue = sim.queues[link * NUM_PRIORITIES + priority]
    number = queue.first
    packet, port, setting = sim.packets[number], sim.ports[link], sim.setting[0]
    queue.first = packet.next
    queue.bytes -= packet.size
    if _takes_room(sim, priority):
        sim.nodes[port.tail].used -= packet.size
    _note_length(sim, link, -packet.size, now)
    if packet.ingress != NOBODY and priority != CONTROL:
        if setting.flow_control == PFC:
            _count_out(sim, packet.ingress, priority, packet.size, now)
        elif setting.flow_control == CREDITS:
            return_credit(sim, packet.ingress, packet.size, now)
    return number  # type: ignore[no-any-return]


@inlined
def return_credit(sim: Simulated, link: int, size: int, now: int) -> None:
    """Tell the transmitter of `link` that `size` bytes of its receiver's buffer are free again."""
    schedule(sim, now + sim.ports[link].delay_ps, CREDIT, (link << CREDIT_BITS) | size)


@inlined
def _takes_room(sim: Simulated, priority: int) -> bool:
    """Whether packets of a priority fill the shared buffer: on lossless links all of it is promised to data."""
    return bool(priority != CONTROL or sim.setting[0].flow_control == LOSSY)


@inlined
def _is_refused(sim: Simulated, number: int, link: int) -> bool:
    """Whether the buffer, or with lossy queues a queue's share of it, has no room. Hosts (buffer 0) have room."""
    packet, port, setting = sim.packets[number], sim.ports[link], sim.setting[0]
    if port.up == 0:
        return True
    node = sim.nodes[port.tail]
    if node.buffer == 0:
        return False
    free = node.buffer - node.used
    if packet.size > free:
        return True
    if setting.flow_control != LOSSY:
        return False
    queued = sim.queues[link * NUM_PRIORITIES + packet.priority].bytes
    return bool(queued + packet.size > setting.port_limit or queued > setting.share * free)


@inlined
def _drop(sim: Simulated, number: int, link: int) -> None:
    clock, packet = sim.clock[0], sim.packets[number]
    clock.num_dropped += 1
    if packet.kind == DATA:
        clock.data_dropped += 1
    sim.flows[packet.flow].lost += 1
    sim.ports[link].num_drops += 1
    free_packet(sim, number)


@inlined
def _mark(sim: Simulated, number: int, link: int) -> None:
    packet, setting = sim.packets[number], sim.setting[0]
    length = sim.queues[link * NUM_PRIORITIES + packet.priority].bytes
    if length < setting.mark_from:
        return
    if length < setting.mark_all:
        chance = setting.mark_most * (length - setting.mark_from) / (setting.mark_all - setting.mark_from)
        if draw(sim) >= chance:
            return
    packet.marked = 1
    sim.ports[link].num_marks += 1


@inlined
def _count_in(sim: Simulated, ingress: int, priority: int, size: int, now: int) -> None:
    queue, setting = sim.queues[ingress * NUM_PRIORITIES + priority], sim.setting[0]
    queue.came_bytes += size
    if queue.pausing == 0 and queue.came_bytes > setting.xoff_bytes:
        queue.pausing = 1
        queue.num_pauses += 1
        schedule(sim, now + _frame_ps(sim, ingress), PAUSE, ingress * NUM_PRIORITIES + priority)


@inlined
def _count_out(sim: Simulated, ingress: int, priority: int, size: int, now: int) -> None:
    queue, setting = sim.queues[ingress * NUM_PRIORITIES + priority], sim.setting[0]
    queue.came_bytes -= size
    if queue.pausing == 1 and queue.came_bytes <= setting.xon_bytes:
        queue.pausing = 0
        schedule(sim, now + _frame_ps(sim, ingress), RESUME, ingress * NUM_PRIORITIES + priority)


@inlined
def _frame_ps(sim: Simulated, ingress: int) -> int:
    port = sim.ports[ingress]
    return port.delay_ps + int(PAUSE_FRAME_BYTES * port.ps_per_byte)  # type: ignore[no-any-return]


@inlined
def _note_length(sim: Simulated, link: int, size: int, now: int) -> None:
    """Keep the port's length, its peak and its integral over time."""
    port = sim.ports[link]
    port.byte_ps += float(port.queued) * (now - port.changed_ps)
    port.changed_ps = now
    port.queued += size
    if port.queued > port.peak_bytes:
        port.peak_bytes = port.queued
