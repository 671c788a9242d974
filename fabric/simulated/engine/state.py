"""The packet engine's state: arrays of records, so that compiled functions name what they change.

Times are integers in picoseconds: a byte at 100 Gbit/s takes 80 of them, and sums never round. Rates are bit/s.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fabric.simulated.compiled import inlined
from fabric.simulated.graph import Floats, Ints
from fabric.simulated.heap import push
from fabric.simulated.switches import FlowControl

PS_PER_S = 10**12
PS_PER_US = 10**6
NOBODY = -1
NUM_PRIORITIES = 8
CONTROL = 0  # the priority of acknowledgements: first, never dropped or paused
ENDLESS = 1e18  # a window that never closes

# Packet kinds.
DATA, ACK, NACK, CNP = 0, 1, 2, 3
# Events: the kind is in the low four bits of a code.
ARRIVE, FREE, WAKE, START, TIMEOUT, PAUSE, RESUME, ALPHA_TIMER, RATE_TIMER, CREDIT = range(10)
KIND_BITS, KIND_MASK = 4, 15
CREDIT_BITS = 14  # a returned credit's code also holds its bytes, at most 16,383
# Flow control on links.
LOSSY, PFC, CREDITS = map(int, FlowControl)
# What a receiver does with packets out of order, and a sender with losses.
GO_BACK_N, NEW_RENO, SELECTIVE = 0, 1, 2
# Transports.
RENO, CUBIC, DCTCP, INFINIBAND, ROCE, ROCE_V2, DCQCN, DCQCN_PLUS, TIMELY, HPCC, IRN = range(11)

PACKET = np.dtype(
    [
        ("stamp", "i8"),  # when the data left its sender
        ("flow", "i4"), ("seq", "i4"), ("size", "i4"), ("ack", "i4"), ("link", "i4"),
        ("ingress", "i4"), ("next", "i4"), ("hop", "i4"),
        ("kind", "i4"), ("priority", "i4"), ("marked", "i4"), ("live", "i4"),
        ("note", "f8"),  # what a CNP tells its sender
    ]
)  # fmt: skip

FLOW = np.dtype(
    [
        # what was asked
        ("transport", "i4"), ("reliability", "i4"), ("priority", "i4"), ("first_link", "i4"),
        ("path_at", "i4"), ("path_len", "i4"), ("num_packets", "i4"), ("packet_bytes", "i4"), ("last_bytes", "i4"),
        ("marks_at", "i4"), ("next_flow", "i4"), ("number", "i4"),
        ("start_ps", "i8"), ("end_ps", "i8"), ("base_rtt_ps", "i8"), ("line_bps", "f8"),
        # the sender
        ("next_seq", "i4"), ("una", "i4"), ("resend", "i4"), ("highest", "i4"), ("scan", "i4"), ("started", "i4"),
        ("next_send_ps", "i8"), ("rate_bps", "f8"), ("window", "f8"),
        ("timeout_due_ps", "i8"), ("timeout_event_ps", "i8"), ("timeout_ps", "i8"),
        ("srtt_ps", "f8"), ("rttvar_ps", "f8"),
        ("dupacks", "i4"), ("recovering", "i4"), ("recover", "i4"),
        # congestion control; each transport says what it keeps here
        ("alpha", "f8"), ("target", "f8"), ("reference", "f8"), ("gradient", "f8"), ("previous", "f8"),
        ("threshold", "f8"), ("peak", "f8"), ("byte_sum", "f8"), ("interval_ps", "f8"), ("epoch_ps", "i8"),
        ("stage", "i4"), ("time_count", "i4"), ("byte_count", "i4"), ("acked", "i4"), ("marked", "i4"),
        ("window_end", "i4"), ("timers", "i4"), ("alpha_due_ps", "i8"), ("rate_due_ps", "i8"),
        # the receiver
        ("expected", "i4"), ("nacked", "i4"), ("cnp_ps", "i8"), ("congested_ps", "i8"),
        # counts
        ("sent", "i8"), ("resent", "i8"), ("lost", "i8"), ("num_timeouts", "i8"),
        ("rtt_sum_ps", "f8"), ("num_rtts", "i8"),
    ],
    align=True,
)  # fmt: skip

PORT = np.dtype(
    [
        ("ps_per_byte", "f8"), ("delay_ps", "i8"), ("tx_bytes", "i8"), ("wake_ps", "i8"), ("queued", "i8"),
        ("peak_bytes", "i8"), ("credits", "i8"), ("num_drops", "i8"), ("num_marks", "i8"), ("byte_ps", "f8"),
        ("changed_ps", "i8"), ("tail", "i4"), ("head", "i4"), ("busy", "i4"), ("ring", "i4"), ("turn", "i4"),
        ("up", "i4"),
    ],
    align=True,
)  # fmt: skip

# One per link and priority: the queue at its start, and what has come in over it at its end.
QUEUE = np.dtype(
    [
        ("bytes", "i8"), ("came_bytes", "i8"), ("paused_ps", "i8"), ("paused_since_ps", "i8"), ("num_pauses", "i8"),
        ("first", "i4"), ("last", "i4"), ("paused", "i4"), ("pausing", "i4"),
    ]
)  # fmt: skip

# A host also counts its congested flows, this epoch's and the last one's (DCQCN+).
NODE = np.dtype([("used", "i8"), ("buffer", "i8"), ("epoch_ps", "i8"), ("congested", "i8"), ("congested_before", "i8")])

SETTING = np.dtype(
    [
        ("flow_control", "i4"), ("ack_bytes", "i4"), ("xoff_bytes", "i8"), ("xon_bytes", "i8"),
        ("mark_from", "f8"), ("mark_all", "f8"), ("mark_most", "f8"), ("port_limit", "i8"), ("share", "f8"),
        ("timeout_min_ps", "i8"),
    ],
    align=True,
)  # fmt: skip

CLOCK = np.dtype(
    [
        ("now_ps", "i8"), ("heap_size", "i8"), ("free", "i8"), ("num_free", "i8"), ("num_events", "i8"),
        ("random", "u8"), ("num_made", "i8"), ("num_taken", "i8"), ("num_dropped", "i8"),
        ("data_sent", "i8"), ("data_received", "i8"), ("data_dropped", "i8"), ("num_done", "i8"),
    ]
)  # fmt: skip


class Simulated(NamedTuple):
    """Everything that the loop reads and changes."""

    packets: Any  # PACKET [pool]
    flows: Any  # FLOW [flows]
    ports: Any  # PORT [links]
    queues: Any  # QUEUE [links · NUM_PRIORITIES]
    nodes: Any  # NODE [nodes]
    setting: Any  # SETTING [1]
    clock: Any  # CLOCK [1]
    keys: Ints  # heap of times
    codes: Ints  # heap of events
    paths: Ints  # links of all flows' paths
    arrived: Any  # uint8 [packets of all flows] seen by the receiver
    acked: Any  # uint8, acknowledged one by one (selective)
    telemetry: Ints  # [pool or 1, hops, 3] queue, bytes sent, time: what HPCC's packets collect
    seen: Ints  # [flows or 1, hops, 3] the same of a flow's last acknowledgement
    hop_bps: Floats  # [links]


@inlined
def schedule(sim: Simulated, when_ps: int, kind: int, subject: int) -> None:
    """Put an event on the heap."""
    clock = sim.clock[0]
    clock.heap_size = push(sim.keys, sim.codes, clock.heap_size, when_ps, (subject << KIND_BITS) | kind)


@inlined
def draw(sim: Simulated) -> float:
    """A uniform number in [0, 1) (xorshift64, Marsaglia 2003)."""
    clock = sim.clock[0]
    state = clock.random
    state ^= state << np.uint64(13)
    state ^= state >> np.uint64(7)
    state ^= state << np.uint64(17)
    clock.random = state
    return (state >> np.uint64(11)) * (1.0 / 9007199254740992.0)  # type: ignore[no-any-return]


@inlined
def make_packet(sim: Simulated, flow: int, kind: int, size: int, now: int) -> int:
    """Take a packet from the pool; the loop stops for a larger pool before it is empty."""
    clock = sim.clock[0]
    number = clock.free
    packet = sim.packets[number]
    clock.free = packet.next
    clock.num_free -= 1
    clock.num_made += 1
    packet.flow, packet.kind, packet.size, packet.stamp = flow, kind, size, now
    packet.hop, packet.marked, packet.live, packet.ingress, packet.next = 0, 0, 1, NOBODY, NOBODY
    packet.priority = sim.flows[flow].priority if kind == DATA else CONTROL
    return number  # type: ignore[no-any-return]


@inlined
def free_packet(sim: Simulated, number: int) -> None:
    """Put a packet back into the pool."""
    clock = sim.clock[0]
    sim.packets[number].live = 0
    sim.packets[number].next = clock.free
    clock.free = number
    clock.num_free += 1


@inlined
def link_at(sim: Simulated, number: int) -> int:
    """The link that a packet takes at its hop: data along the path, everything else back."""
    packet = sim.packets[number]
    flow = sim.flows[packet.flow]
    if packet.kind == DATA:
        return sim.paths[flow.path_at + packet.hop]  # type: ignore[no-any-return]
    return sim.paths[flow.path_at + flow.path_len - 1 - packet.hop] ^ 1  # type: ignore[no-any-return]
