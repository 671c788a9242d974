"""The packet engine: flows of named transports over a network of switches with queues, event by event.

    graph = LeafSpine(4, 2, 8, gbit=40).build()
    result = simulate_packets(graph, [PacketFlow(host, 0, 1e6, "dcqcn") for host in range(8, 16)])
    result.end_s, result.num_drops, result.num_pauses

Conservation is asserted in every run: packets made = taken in + dropped + in flight, and the same for data alone.

Differs from hardware: host processing takes no time, acknowledgements are never dropped or paused, and servers that
forward have endless memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fabric.simulated.engine import state
from fabric.simulated.engine.loop import ALL_DONE, IDLE, OUT_OF_ROOM, run_until
from fabric.simulated.engine.state import PS_PER_S, Simulated
from fabric.simulated.graph import Floats, Ints, NetworkError, NetworkGraph, PathSet
from fabric.simulated.routing import route
from fabric.simulated.switches import FlowControl, Marking, SwitchSettings
from fabric.simulated.transports import TransportSpec, find_transport

BITS = 8
FIRST_POOL = 4096
LARGEST_PACKET = (1 << state.CREDIT_BITS) - 1
MORE = 2


@dataclass(frozen=True, slots=True)
class PacketFlow:
    """`num_bytes` of payload from host to host by a transport, from `start_s` on.

    `priority` is 1 (first) to 7; `choice` is what switches hash (None: the flow's index).
    """

    source: int
    destination: int
    num_bytes: float
    transport: str = "roce-v2"
    start_s: float = 0.0
    priority: int = 1
    choice: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PacketResult:
    """What happened until `now_s`. Arrays are per flow or per link (directions of cables)."""

    now_s: float
    end_s: Floats  # [flows] when the last byte arrived; nan: not yet
    delivered_bytes: Floats  # [flows] payload that arrived in order
    mean_rtt_s: Floats  # [flows] nan: nothing acknowledged
    num_resent: Ints  # [flows]
    num_timeouts: Ints  # [flows]
    num_drops: Ints  # [links]
    num_marks: Ints  # [links]
    num_pauses: Ints  # [links] pause frames that the link's receiver sent
    paused_s: Floats  # [links] summed over priorities
    peak_bytes: Ints  # [links] of the queue at the link's start
    mean_bytes: Floats  # [links] over time
    sent_bytes: Ints  # [links] on the wire
    num_events: int

    def rate_bps(self, flow: int, start_s: float = 0.0) -> float:
        """Payload per second of a flow from `start_s` to its end, or until now."""
        end_s = self.end_s[flow] if np.isfinite(self.end_s[flow]) else self.now_s
        return float(self.delivered_bytes[flow]) * BITS / (float(end_s) - start_s)


def simulate_packets(
    graph: NetworkGraph,
    flows: Sequence[PacketFlow],
    settings: SwitchSettings | None = None,
    *,
    until_s: float = 10.0,
    paths: PathSet | None = None,
) -> PacketResult:
    """Run until all flows are done or `until_s` is reached; `paths` replaces the network's routing."""
    run = PacketRun(graph, flows, settings or SwitchSettings(), paths)
    run.advance(until_s)
    return run.result()


class PacketRun:
    """A simulation that can be stopped at any time, looked at, and continued."""

    def __init__(
        self, graph: NetworkGraph, flows: Sequence[PacketFlow], settings: SwitchSettings, paths: PathSet | None = None
    ) -> None:
        if not flows:
            raise NetworkError("no flows are given, and nothing would happen; give at least 1")
        self.graph, self.flows = graph, tuple(flows)
        self.specs = [find_transport(flow.transport) for flow in flows]
        self.settings = _resolved(settings, self.specs[0])
        self.paths = paths or _routed(graph, self.flows, self.specs)
        self.sim = _fresh(graph, self.flows, self.specs, self.settings, self.paths)

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return float(self.sim.clock["now_ps"][0]) / PS_PER_S

    @property
    def is_done(self) -> bool:
        """Whether every flow has ended."""
        return bool(self.sim.clock["num_done"][0] == len(self.flows))

    def advance(self, until_s: float) -> None:
        """Go on to `until_s`, or to the end of the last flow."""
        until_ps = round(until_s * PS_PER_S)
        while (outcome := run_until(self.sim, until_ps)) == OUT_OF_ROOM:
            self.sim = _grown(self.sim)
        if outcome == IDLE:
            self.sim.clock["now_ps"] = max(int(self.sim.clock["now_ps"][0]), until_ps)
        assert outcome != ALL_DONE or self.is_done
        self._check_conservation()

    def _check_conservation(self) -> None:
        clock, packets = self.sim.clock[0], self.sim.packets
        live = packets["live"] == 1
        data = int((live & (packets["kind"] == state.DATA)).sum())
        assert clock["num_made"] == clock["num_taken"] + clock["num_dropped"] + int(live.sum()), "packets were lost"
        assert clock["data_sent"] == clock["data_received"] + clock["data_dropped"] + data, "data was lost"
        assert int(live.sum()) + clock["num_free"] == len(packets), "the pool leaks"

    def queue_bytes(self, link: int) -> int:
        """What waits for `link` now."""
        return int(self.sim.ports["queued"][link])

    def rates_bps(self) -> Floats:
        """The pacing rate of each flow now."""
        return np.asarray(self.sim.flows["rate_bps"]).copy()

    def delivered_bytes(self) -> Floats:
        """Payload of each flow that has arrived in order."""
        flows = self.sim.flows
        payloads = np.array([spec.payload_bytes for spec in self.specs], np.float64)
        sizes = np.array([flow.num_bytes for flow in self.flows], np.float64)
        arrived: Floats = np.minimum(flows["expected"] * payloads, sizes)
        return arrived

    def byte_seconds(self, link: int) -> float:
        """What has waited for `link` so far, summed over time."""
        port = self.sim.ports[link]
        since_ps = int(self.sim.clock["now_ps"][0]) - int(port["changed_ps"])
        return (float(port["byte_ps"]) + float(port["queued"]) * since_ps) / PS_PER_S

    @property
    def least_round_trip_s(self) -> float:
        """What a full packet and its acknowledgement take on the longest path, with nobody else on it."""
        return float(self.sim.flows["base_rtt_ps"][0]) / PS_PER_S

    def alone_s(self) -> Floats:
        """How long each flow takes with the network to itself and no window: its packets one behind the other."""
        delays, rates = np.repeat(self.graph.delay_s, 2), self.graph.link_rate_bps
        flows = self.sim.flows
        found: Floats = np.zeros(len(flows))
        for flow, (count, full, last) in enumerate(flows[["num_packets", "packet_bytes", "last_bytes"]].tolist()):
            path = self.paths[flow]
            found[flow] = delays[path].sum() + _passed_s(count, full * BITS / rates[path], last * BITS / rates[path])
        return found

    def deadlock(self) -> list[int]:
        """Links that wait for each other in a circle, in order; empty if none do.

        Link a waits for link b if a is paused or without credits and holds packets, and packets that came in over a
        wait for b.
        """
        waits: dict[int, set[int]] = {}
        for number in np.flatnonzero(self.sim.packets["live"] == 1).tolist():
            packet = self.sim.packets[number]
            if packet["ingress"] >= 0 and packet["priority"] != state.CONTROL:
                waits.setdefault(int(packet["ingress"]), set()).add(int(packet["link"]))
        return _circle(
            {link: {to for to in heads if self._is_held(to)} for link, heads in waits.items() if self._is_held(link)}
        )

    def _is_held(self, link: int) -> bool:
        ports, queues = self.sim.ports, self.sim.queues.reshape(-1, state.NUM_PRIORITIES)
        if self.settings.flow_control is FlowControl.CREDITS:
            return bool(ports["credits"][link] < self.sim.flows["packet_bytes"].min())
        return bool((queues["paused"][link] == 1).any())

    def result(self) -> PacketResult:
        """What has happened so far."""
        flows, ports, clock = self.sim.flows, self.sim.ports, self.sim.clock[0]
        queues = self.sim.queues.reshape(-1, state.NUM_PRIORITIES)
        now = int(clock["now_ps"])
        still = np.where(queues["paused"] == 1, now - queues["paused_since_ps"], 0)
        acknowledged = np.maximum(flows["num_rtts"], 1)
        return PacketResult(
            now_s=now / PS_PER_S,
            end_s=np.where(flows["end_ps"] >= 0, flows["end_ps"] / PS_PER_S, np.nan),
            delivered_bytes=self.delivered_bytes(),
            mean_rtt_s=np.where(flows["num_rtts"] > 0, flows["rtt_sum_ps"] / acknowledged / PS_PER_S, np.nan),
            num_resent=flows["resent"].copy(),
            num_timeouts=flows["num_timeouts"].copy(),
            num_drops=ports["num_drops"].copy(),
            num_marks=ports["num_marks"].copy(),
            num_pauses=queues["num_pauses"].sum(axis=1),
            paused_s=(queues["paused_ps"] + still).sum(axis=1) / PS_PER_S,
            peak_bytes=ports["peak_bytes"].copy(),
            mean_bytes=(ports["byte_ps"] + ports["queued"] * (now - ports["changed_ps"])) / max(now, 1),
            sent_bytes=ports["tx_bytes"].copy(),
            num_events=int(clock["num_events"]),
        )


def _passed_s(count: int, full_s: Floats, last_s: Floats) -> float:
    """When the last of `count` packets has left a path of idle links, which take `full_s` and `last_s` [hops] per full
    and last packet and wait for all of a packet."""
    if count == 1:
        return float(last_s.sum())
    # full packets are as far apart as the slowest link so far makes them; the last one may wait for the one before
    before_s = np.cumsum(full_s) + (count - 2) * np.maximum.accumulate(full_s)
    passed_s = 0.0
    for ahead_s, own_s in zip(before_s.tolist(), last_s.tolist(), strict=True):
        passed_s = max(passed_s, ahead_s) + own_s
    return passed_s


def headroom_bytes(rate_bps: float, delay_s: float, packet_bytes: int) -> int:
    """What still arrives after a pause was sent: a round trip at line rate, and a packet being sent at each end."""
    return int(np.ceil(2 * delay_s * rate_bps / BITS)) + 2 * packet_bytes + 64


def _resolved(settings: SwitchSettings, spec: TransportSpec) -> SwitchSettings:
    control = spec.flow_control if settings.flow_control is None else settings.flow_control
    return replace(settings, flow_control=control, marking=settings.marking or spec.marking)


def _routed(graph: NetworkGraph, flows: Sequence[PacketFlow], specs: Sequence[TransportSpec]) -> PathSet:
    choices = [
        (index if flow.choice is None else flow.choice) if spec.is_routed else 0
        for index, (flow, spec) in enumerate(zip(flows, specs, strict=True))
    ]
    return route(graph, [flow.source for flow in flows], [flow.destination for flow in flows], choices)


def _fresh(
    graph: NetworkGraph,
    flows: Sequence[PacketFlow],
    specs: Sequence[TransportSpec],
    settings: SwitchSettings,
    paths: PathSet,
) -> Simulated:
    """The state before anything has happened, with every flow's start on the heap."""
    table = _flow_table(graph, flows, specs, settings, paths)
    num_marks = int(table["num_packets"].sum())
    uses_telemetry = any(spec.number == state.HPCC for spec in specs)
    hops = int(np.diff(paths.offsets).max())
    starts = np.sort(table["start_ps"])
    events = FIRST_POOL * MORE + 4 * len(flows)
    keys, codes = np.zeros(events, np.int64), np.zeros(events, np.int64)
    order = np.argsort(table["start_ps"], kind="stable")
    keys[: len(flows)], codes[: len(flows)] = starts, (order << state.KIND_BITS) | state.START
    clock = np.zeros(1, state.CLOCK)
    clock["heap_size"], clock["num_free"], clock["random"] = len(flows), FIRST_POOL, 2 * settings.seed + 1
    ports = _ports(graph, settings)
    _join_rings(ports, table)
    return Simulated(
        packets=_pool(0, FIRST_POOL, state.NOBODY),
        flows=table,
        ports=ports,
        queues=_queues(graph),
        nodes=_nodes(graph, settings),
        setting=_setting(graph, settings, table),
        clock=clock,
        keys=keys,
        codes=codes,
        paths=paths.links.astype(np.int64),
        arrived=np.zeros(num_marks, np.uint8),
        acked=np.zeros(num_marks, np.uint8),
        telemetry=np.zeros((FIRST_POOL if uses_telemetry else 1, hops, 3), np.int64),
        seen=np.zeros((len(flows) if uses_telemetry else 1, hops, 3), np.int64),
        hop_bps=graph.link_rate_bps,
    )


def _flow_table(
    graph: NetworkGraph,
    flows: Sequence[PacketFlow],
    specs: Sequence[TransportSpec],
    settings: SwitchSettings,
    paths: PathSet,
) -> np.ndarray:
    table = np.zeros(len(flows), state.FLOW)
    rates, delays = graph.link_rate_bps, np.repeat(graph.delay_s, 2)
    for index, (flow, spec) in enumerate(zip(flows, specs, strict=True)):
        _check(flow, spec)
        path = paths[index]
        num_packets = -(-int(flow.num_bytes) // spec.payload_bytes)
        size = spec.payload_bytes + spec.header_bytes
        last = int(flow.num_bytes) - (num_packets - 1) * spec.payload_bytes + spec.header_bytes
        there = (size * BITS / rates[path] + delays[path]).sum()
        back = (settings.ack_bytes * BITS / rates[path] + delays[path]).sum()
        row = table[index]
        row["transport"], row["reliability"] = spec.number, spec.reliability
        row["priority"], row["first_link"] = flow.priority, path[0]
        row["path_at"], row["path_len"] = paths.offsets[index], len(path)
        row["num_packets"], row["packet_bytes"], row["last_bytes"] = num_packets, size, last
        row["start_ps"] = row["next_send_ps"] = round(flow.start_s * PS_PER_S)
        row["base_rtt_ps"] = round((there + back) * PS_PER_S)
        row["line_bps"] = row["rate_bps"] = rates[path[0]]
        row["timeout_ps"] = round(spec.timeout_s * PS_PER_S)
    # one round trip for all, the longest: HPCC's T, IRN's product and TIMELY's least RTT are a network's constants
    table["base_rtt_ps"] = table["base_rtt_ps"].max()
    table["number"] = np.arange(len(flows))
    table["marks_at"] = np.concatenate([[0], table["num_packets"].cumsum()[:-1]])
    for column in ("resend", "recover", "highest", "epoch_ps", "end_ps"):
        table[column] = state.NOBODY
    table["window"] = state.ENDLESS
    table["cnp_ps"] = table["congested_ps"] = -PS_PER_S  # long ago
    return table


def _check(flow: PacketFlow, spec: TransportSpec) -> None:
    if flow.num_bytes < 1:
        raise NetworkError(f"a flow of {flow.num_bytes} bytes sends nothing; leave it out")
    if not 1 <= flow.priority < state.NUM_PRIORITIES:
        raise NetworkError(f"priority {flow.priority} is not for data; use 1 to {state.NUM_PRIORITIES - 1}")
    if flow.start_s < 0.0:
        raise NetworkError(f"a flow cannot start at {flow.start_s} s; use 0 or later")
    assert spec.payload_bytes + spec.header_bytes <= LARGEST_PACKET


def _ports(graph: NetworkGraph, settings: SwitchSettings) -> np.ndarray:
    ports = np.zeros(2 * graph.num_cables, state.PORT)
    rates = np.repeat(graph.rate_bps, 2)
    ports["ps_per_byte"] = BITS * PS_PER_S / rates
    ports["delay_ps"] = np.rint(np.repeat(graph.delay_s, 2) * PS_PER_S)
    ports["tail"], ports["head"] = graph.ends.reshape(-1), graph.heads
    ports["credits"], ports["ring"] = settings.credit_bytes, state.NOBODY
    ports["up"], ports["turn"] = np.repeat(graph.up, 2), 1
    return ports


def _join_rings(ports: np.ndarray, table: np.ndarray) -> None:
    """Flows that start at the same port form a ring, in which they take turns."""
    last: dict[int, int] = {}
    for index, link in enumerate(table["first_link"].tolist()):
        if link in last:
            table["next_flow"][last[link]] = index
        else:
            ports["ring"][link] = index
        last[link] = index
    for link, index in last.items():
        table["next_flow"][index] = ports["ring"][link]


def _queues(graph: NetworkGraph) -> np.ndarray:
    queues = np.zeros(2 * graph.num_cables * state.NUM_PRIORITIES, state.QUEUE)
    queues["first"] = queues["last"] = state.NOBODY
    return queues


def _nodes(graph: NetworkGraph, settings: SwitchSettings) -> np.ndarray:
    nodes = np.zeros(graph.num_nodes, state.NODE)
    nodes["buffer"][graph.num_hosts :] = settings.buffer_bytes
    return nodes


def _setting(graph: NetworkGraph, settings: SwitchSettings, table: np.ndarray) -> np.ndarray:
    packet_bytes, num_priorities = int(table["packet_bytes"].max()), len(np.unique(table["priority"]))
    setting = np.zeros(1, state.SETTING)
    xoff = 0
    if settings.flow_control is FlowControl.PFC:
        largest = largest_xoff_bytes(graph, settings.buffer_bytes, packet_bytes, num_priorities)
        xoff = largest if settings.xoff_bytes is None else settings.xoff_bytes
        if xoff > largest:
            raise NetworkError(
                f"links that are paused at {xoff} bytes can overfill a buffer of {settings.buffer_bytes}; "
                f"use xoff_bytes of at most {largest}, or a larger buffer"
            )
    elif settings.flow_control is FlowControl.CREDITS:
        _check_credits(settings, _most_ports(graph), packet_bytes)
    setting["flow_control"], setting["ack_bytes"] = settings.flow_control, settings.ack_bytes
    setting["xoff_bytes"], setting["xon_bytes"] = xoff, max(xoff - 2 * packet_bytes, 0)
    marking = settings.marking or Marking(np.inf, np.inf)
    setting["mark_from"], setting["mark_all"] = marking.mark_from, marking.mark_all
    setting["mark_most"], setting["share"] = marking.mark_most, settings.share
    setting["port_limit"] = settings.port_bytes or 2**62
    setting["timeout_min_ps"] = round(settings.timeout_min_s * PS_PER_S)
    return setting


def _check_credits(settings: SwitchSettings, num_ports: int, packet_bytes: int) -> None:
    """Whether every link's credits hold a packet, and a switch's buffer all that its links may send at once."""
    credit = settings.credit_bytes
    if credit < packet_bytes:
        raise NetworkError(f"{credit} bytes of credit hold no packet of {packet_bytes}; use more")
    if credit * num_ports > settings.buffer_bytes:
        raise NetworkError(
            f"{credit} bytes of credit for each of {num_ports} ports can overfill a buffer of {settings.buffer_bytes}; "
            f"use credit_bytes of at most {settings.buffer_bytes // num_ports}, or a buffer of {credit * num_ports}"
        )


def _most_ports(graph: NetworkGraph) -> int:
    """The cables of the switch that has most of them; at least 1."""
    return max(int(np.diff(graph.first)[graph.num_hosts :].max(initial=1)), 1)


def largest_xoff_bytes(graph: NetworkGraph, buffer_bytes: int, packet_bytes: int, num_priorities: int = 1) -> int:
    """The largest PFC threshold with which no packet can be dropped: the buffer's part less the headroom.

    Each priority of each port has a part, since each is paused by itself. NetworkError if the buffer is too small.
    """
    num_parts = _most_ports(graph) * num_priorities
    headroom = headroom_bytes(float(graph.rate_bps.max()), float(graph.delay_s.max()), packet_bytes)
    xoff = buffer_bytes // num_parts - headroom
    if xoff < 2 * packet_bytes:
        raise NetworkError(
            f"{buffer_bytes} bytes of buffer for {num_parts} ports and priorities leave nothing after {headroom} bytes "
            f"of headroom each; use at least {num_parts * (headroom + 2 * packet_bytes)}"
        )
    return int(xoff)


def _pool(first: int, end: int, free: int) -> np.ndarray:
    """Free packets `first` … `end` − 1 in a list that ends in `free`."""
    packets = np.zeros(end - first, state.PACKET)
    packets["next"] = np.arange(first + 1, end + 1)
    packets["next"][-1] = free
    return packets


def _grown(sim: Simulated) -> Simulated:
    """The same state with twice the packets and events."""
    size, clock = len(sim.packets), sim.clock
    telemetry = sim.telemetry
    if len(telemetry) > 1:
        telemetry = np.concatenate([telemetry, np.zeros_like(telemetry)])
    packets = np.concatenate([sim.packets, _pool(size, MORE * size, int(clock["free"][0]))])
    clock["free"] = size
    clock["num_free"] += size
    return sim._replace(
        packets=packets,
        telemetry=telemetry,
        keys=np.concatenate([sim.keys, np.zeros_like(sim.keys)]),
        codes=np.concatenate([sim.codes, np.zeros_like(sim.codes)]),
    )


def _circle(waits: dict[int, set[int]]) -> list[int]:
    """A circle in a directed graph, found by depth-first search; empty if there is none."""
    done: set[int] = set()
    for start in waits:
        trail: list[int] = []
        stack: list[tuple[int, list[int]]] = [(start, sorted(waits[start]))]
        while stack:
            node, heads = stack[-1]
            if node in done or node not in waits or not heads:
                done.add(node)
                stack.pop()
                continue
            head = heads.pop()
            trail = [each for each, _ in stack]
            if head in trail:
                return trail[trail.index(head) :]
            stack.append((head, sorted(waits.get(head, ()))))
    return []
