"""The papers' own experiments on the packet engine, scaled down: the suite's cells of flows without jobs.

Seeds draw starts, sizes and marks, so every cell has repeats. Groups say what is asked; claims read the first group of
flows for completion times and the last one for goodput.
"""

from __future__ import annotations

from collections.abc import Iterator

from fabric.api import FabricKind, FabricSpec, NetworkSpec
from fabric.simulated.flow_traffic import FlowGroup, MixedLoad, PacketTraffic
from fabric.simulated.switches import FlowControl, Marking, SwitchSettings
from harness.trial import Trial

NAME = "networks"
ENDLESS_BYTES = 1e9  # more than any of these runs can send
WIRE_BYTES = 1538  # of a full Ethernet frame, preamble and gap included
INCAST_BYTES, INCAST_SENDERS = 1e6, (1, 2, 4, 8, 16, 32)
INCAST_PORT_BYTES = 64_000
LONG_TIMEOUT_S, SHORT_TIMEOUT_S = 0.2, 200e-6
MIXED = ("roce-v2", "irn", "dcqcn", "hpcc", "dctcp")
LIMIT_FLOWS = (2, 5, 10, 20, 40)
LIMIT_MARK_PACKETS = 40


def packet_cells() -> list[Trial]:
    """One trial of every experiment."""
    cells = (fair_shares(), queues(), round_trips(), short_and_long(), mixed_loads(), buffers(), incasts())
    return [cell for group in (*cells, limit_cycles(), circles(), victims(), starts()) for cell in group]


def packet_cell(
    group: str, label: str, topology: str, transport: str, traffic: PacketTraffic, *, axis: str = "", at: float = 0.0
) -> Trial:
    """One trial of flows."""
    return Trial(
        suite=NAME,
        cell=f"{group}/packets/{label}",
        jobs=(),
        fabric=FabricSpec(
            kind=FabricKind.SIMULATED,
            num_hosts=1,
            rate_bps=None,
            network=NetworkSpec(topology=topology, transport=transport),
        ),
        traffic=traffic,
        axis=axis,
        at=at if axis else None,
    )


def star(num_senders: int, gbit: float = 40, delay_us: float = 1.0) -> str:
    """A switch with one receiver, host 0, and its senders."""
    return f"leaf-spine(leaves=1, spines=1, hosts_per_leaf={num_senders + 1}, gbit={gbit:g}, delay_us={delay_us:g})"


def senders(num_senders: int, num_bytes: float = ENDLESS_BYTES, jitter_s: float = 1e-6) -> FlowGroup:
    """Hosts 1 and on, all to host 0."""
    hosts = tuple(range(1, num_senders + 1))
    return FlowGroup(name="senders", sources=hosts, destinations=(0,), num_bytes=num_bytes, jitter_s=jitter_s)


def fair_shares() -> Iterator[Trial]:
    """DCQCN, figures 3 and 8: one sender at the receiver's switch, three behind one uplink."""
    topology = "leaf-spine(leaves=2, spines=1, hosts_per_leaf=4, gbit=40)"
    group = FlowGroup(name="senders", sources=(1, 4, 5, 6), destinations=(0,), num_bytes=ENDLESS_BYTES)
    for transport in ("roce-v2", "dcqcn"):
        traffic = PacketTraffic(groups=(group,), until_s=0.05, from_s=0.02)
        yield packet_cell("packets-fair", transport, topology, transport, traffic)


def queues() -> Iterator[Trial]:
    """Twenty into one. DCQCN, section 6.3, whose DCTCP marks from 160 KB on."""
    for transport in ("dcqcn", "dctcp"):
        marking = Marking(160e3, 160e3) if transport == "dctcp" else None
        switches = SwitchSettings(marking=marking, buffer_bytes=12_000_000, timeout_min_s=5e-3)
        traffic = PacketTraffic(groups=(senders(20),), until_s=0.025, from_s=0.015, switches=switches)
        yield packet_cell("packets-queue", transport, star(20), transport, traffic)


def round_trips() -> Iterator[Trial]:
    """TIMELY, section 6.2: ten into one at 10 Gbit/s."""
    for transport in ("roce-v2", "timely"):
        switches = SwitchSettings(buffer_bytes=4_000_000)
        traffic = PacketTraffic(groups=(senders(10),), until_s=0.06, switches=switches)
        yield packet_cell("packets-round-trip", transport, star(10, 10, 5.0), transport, traffic)


def short_and_long() -> Iterator[Trial]:
    """HPCC, sections 5.2 and 5.3: bursts of short flows beside two long ones."""
    short = FlowGroup(
        name="short", sources=(3, 4, 5, 6), destinations=(0,), num_bytes=10e3, start_s=0.02, every_s=1e-3, num_times=20
    )
    for transport in ("dcqcn", "hpcc"):
        traffic = PacketTraffic(groups=(short, senders(2)), until_s=0.042, from_s=0.02)
        yield packet_cell("packets-short-long", transport, star(15), transport, traffic)


def mixed_loads() -> Iterator[Trial]:
    """IRN, section 4.2: a load of 70 % on a fat-tree whose switches have four times 240 KB, its default."""
    for transport in MIXED:
        switches = SwitchSettings(buffer_bytes=4 * 240_000, timeout_min_s=5e-3)
        traffic = PacketTraffic(mixed=MixedLoad(num_flows=400, load=0.7), switches=switches)
        topology = "fat-tree(k=4, gbit=40, delay_us=2)"
        yield packet_cell("packets-mixed-70", transport, topology, transport, traffic)


def buffers() -> Iterator[Trial]:
    """DCTCP, figure 1: two long flows at 10 Gbit/s, marking from 65 packets on."""
    for transport in ("dctcp", "reno", "cubic"):
        switches = SwitchSettings(buffer_bytes=600_000, timeout_min_s=10e-3)
        traffic = PacketTraffic(groups=(senders(2),), until_s=0.06, from_s=0.02, num_samples=200, switches=switches)
        yield packet_cell("packets-buffer", transport, star(2, 10, 10.0), transport, traffic)


def incasts() -> Iterator[Trial]:
    """Vasudevan et al., SIGCOMM 2009: a block of 1 MB striped over servers behind a shallow port of 1 Gbit/s.

    A repeat is a block: the next one is asked for when the last is there. DCTCP marks from 20 packets on.
    """
    ways = (("reno", LONG_TIMEOUT_S, "200ms"), ("reno", SHORT_TIMEOUT_S, "200us"), ("dctcp", LONG_TIMEOUT_S, "200ms"))
    for count in INCAST_SENDERS:
        for transport, timeout_s, name in ways:
            marking = Marking(20.0 * WIRE_BYTES, 20.0 * WIRE_BYTES) if transport == "dctcp" else None
            switches = SwitchSettings(port_bytes=INCAST_PORT_BYTES, timeout_min_s=timeout_s, marking=marking)
            group = senders(count, INCAST_BYTES / count, jitter_s=50e-6)
            yield packet_cell(
                f"packets-incast-{count}",
                f"{transport}-{name}",
                star(count, 1, 25.0),
                transport,
                PacketTraffic(groups=(group,), switches=switches),
                axis="senders",
                at=count,
            )


def limit_cycles() -> Iterator[Trial]:
    """DCTCP, section 3.3 and figure 12: N long flows at 10 Gbit/s, a round trip of 100 µs, marks from 40 packets on."""
    for count in LIMIT_FLOWS:
        mark = LIMIT_MARK_PACKETS * float(WIRE_BYTES)
        switches = SwitchSettings(marking=Marking(mark, mark), timeout_min_s=10e-3)
        traffic = PacketTraffic(groups=(senders(count),), until_s=0.06, from_s=0.04, num_samples=300, switches=switches)
        # four cables there and back, and the packets' own time of 2.5 µs
        topology = star(count, 10, 24.4)
        yield packet_cell(f"packets-limit-{count}", "dctcp", topology, "dctcp", traffic, axis="flows", at=count)


def circles() -> Iterator[Trial]:
    """Every host sends two switches on, so that all links of the ring wait for the next one where they are lossless."""
    hosts = tuple(range(10))
    ahead = tuple((host + 4) % 10 for host in hosts)
    group = FlowGroup(name="around", sources=hosts, destinations=ahead, num_bytes=ENDLESS_BYTES)
    for transport in ("roce-v2", "infiniband", "irn"):
        control = FlowControl.CREDITS if transport == "infiniband" else None
        switches = SwitchSettings(buffer_bytes=200_000, credit_bytes=20_000, flow_control=control)
        traffic = PacketTraffic(groups=(group,), until_s=0.03, from_s=0.02, switches=switches)
        topology = "switch-ring(switches=5, hosts_per_switch=2, gbit=40)"
        yield packet_cell("packets-circle", transport, topology, transport, traffic)


def victims() -> Iterator[Trial]:
    """DCQCN, figure 4: a flow to an idle rack, over the uplink of two flows that are part of an incast elsewhere."""
    incast = FlowGroup(name="incast", sources=(5, 6, 8, 9, 10, 11), destinations=(0,), num_bytes=ENDLESS_BYTES)
    victim = FlowGroup(name="victim", sources=(4,), destinations=(12,), num_bytes=ENDLESS_BYTES)
    for transport in ("roce-v2", "irn"):
        switches = SwitchSettings(buffer_bytes=2_000_000)
        traffic = PacketTraffic(groups=(incast, victim), until_s=0.015, from_s=0.005, switches=switches)
        topology = "leaf-spine(leaves=4, spines=1, hosts_per_leaf=4, gbit=40)"
        yield packet_cell("packets-victim", transport, topology, transport, traffic)


def starts() -> Iterator[Trial]:
    """Eight into one from their start: what queues and pauses do before control sets in."""
    for transport in ("roce-v2", "dcqcn", "hpcc", "dctcp"):
        switches = SwitchSettings(buffer_bytes=2_000_000)
        traffic = PacketTraffic(groups=(senders(8),), until_s=4e-3, num_samples=200, switches=switches)
        yield packet_cell("packets-start", transport, star(8), transport, traffic)
