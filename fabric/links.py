"""Links, queues and counters of the emulated fabric, over netlink.

Every function that takes an `IPRoute` acts in the network namespace in which it was opened.
"""

from __future__ import annotations

from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.rtnl.tcmsg import plugins as tc_plugins

from fabric.cluster import Host
from fabric.shaping import QUEUE_BYTES, Shaping

SWITCH = "switch"
UPLINK = "uplink"
SUBNET_BITS = 24
_ROOT = 0x10000  # 1:0
_CLASS = 0x10001  # 1:1
_LEAF = 0x20000  # 2:0
_QUANTUM_BYTES = 60_000  # no effect on a lone class; the kernel complains about its own default
_BYTE_QUEUE = "bfifo"
_IFA_F_NOPREFIXROUTE = 0x200
_RT_SCOPE_LINK = 253

# pyroute2 knows only the queue bounded in packets; the one bounded in bytes has the same options
tc_plugins.setdefault(_BYTE_QUEUE, tc_plugins["pfifo"])


def port_name(host: int) -> str:
    """Return the switch's interface towards a host."""
    return f"port{host}"


def add_switch(ip: IPRoute) -> int:
    """Make a learning switch that sends nothing of its own, and return its interface index."""
    ip.link("add", ifname=SWITCH, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
    silence_ipv6(SWITCH)
    return raise_link(ip, SWITCH)


def add_cable(ip: IPRoute, switch: int, host: int, network: int, mtu: int) -> int:
    """Lay a cable from the switch to the namespace `network`, and return the switch's port index."""
    name = port_name(host)
    peer = {"ifname": UPLINK, "net_ns_fd": network, "mtu": mtu}
    ip.link("add", ifname=name, kind="veth", mtu=mtu, peer=peer)
    silence_ipv6(name)
    index = raise_link(ip, name)
    ip.link("set", index=index, master=switch)
    return index


def configure_host(ip: IPRoute, host: Host, subnet: str, congestion: str) -> int:
    """Raise a host's loopback and uplink with its address, and return the uplink's index."""
    raise_link(ip, "lo")
    silence_ipv6(UPLINK)
    index = raise_link(ip, UPLINK)
    ip.addr("add", index=index, address=host.address, prefixlen=SUBNET_BITS, IFA_FLAGS=_IFA_F_NOPREFIXROUTE)
    add_route(ip, index, subnet, congestion)
    return index


def add_route(ip: IPRoute, index: int, subnet: str, congestion: str) -> None:
    """Route the subnet through interface `index`, with the congestion control of its TCP connections.

    On the route it holds for both ends of every connection, and it needs neither a change to the
    machine's settings nor privileges outside the namespace, as the namespace's default would.
    """
    destination = f"{subnet}/{SUBNET_BITS}"
    ip.route("add", dst=destination, oif=index, scope=_RT_SCOPE_LINK, metrics={"cc_algo": congestion})


def raise_link(ip: IPRoute, name: str) -> int:
    """Set an interface up and return its index."""
    (index,) = ip.link_lookup(ifname=name)
    ip.link("set", index=index, state="up")
    return int(index)


def silence_ipv6(interface: str) -> None:
    """Keep IPv6's own packets off an interface of the caller's namespace, so that only ranks are counted."""
    switch = Path("/proc/sys/net/ipv6/conf", interface, "disable_ipv6")
    if switch.exists():
        switch.write_text("1")


def add_queue(ip: IPRoute, index: int, shaping: Shaping | None) -> None:
    """Install the queue of what leaves interface `index`; without shaping it only counts."""
    if shaping is None:
        ip.tc("add", _BYTE_QUEUE, index, _ROOT, limit=QUEUE_BYTES)
        return
    ip.link("set", index=index, IFLA_GSO_MAX_SIZE=shaping.batch_bytes)
    ip.tc("add", "htb", index, _ROOT, default=_CLASS & 0xFFFF)
    ip.tc(
        "add-class",
        "htb",
        index,
        _CLASS,
        parent=_ROOT,
        rate=shaping.bytes_per_s,
        ceil=shaping.bytes_per_s,
        burst=shaping.burst_bytes,
        cburst=shaping.burst_bytes,
        quantum=_QUANTUM_BYTES,
    )
    ip.tc("add", _BYTE_QUEUE, index, _LEAF, parent=_CLASS, limit=QUEUE_BYTES)


def sent(ip: IPRoute, index: int) -> tuple[int, int]:
    """Return bytes and packets that left an interface, as they would on a wire.

    The root queue counts each packet of a segmentation-offload batch with its headers; the
    interface's own counters see the batch as one packet.
    """
    for queue in ip.get_qdiscs(index=index):
        if queue["handle"] == _ROOT:
            basic = queue.get_nested("TCA_STATS2", "TCA_STATS_BASIC")
            return int(basic["bytes"]), int(basic["packets"])
    raise LookupError(f"interface {index} has no queue {_ROOT:#x}")


def resent_segments() -> int:
    """Return the segments of TCP that were sent again in this thread's network namespace."""
    names, values = (
        line.split() for line in Path("/proc/thread-self/net/snmp").read_text().splitlines() if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])
