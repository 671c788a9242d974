"""The emulated fabric: a network namespace for each host, joined by a switch through shaped cables.

    host0 [uplink]──shaped──►[port0]┐
                   ◄──shaped──      ├ switch, in a namespace of its own
    host1 [uplink]──shaped──►[port1]┘
                   ◄──shaped──

Ranks speak real TCP over real kernel queues. Both directions of every cable are held to the line
rate, so that many hosts sending to one share that one's link.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from fabric import links, namespaces
from fabric.cluster import Counters, FabricError, FabricSpec, Host, check_host
from fabric.shaping import Shaping, shaping_for

SUBNET = "10.77.0.0"


class EmulatedCluster:
    """A cluster in namespaces that only this process and its children refer to."""

    def __init__(self, spec: FabricSpec) -> None:
        """Build the network. Raises FabricError if the kernel refuses a part of it."""
        _check_congestion(spec.congestion)
        self._spec = spec
        self._hosts = tuple(_host(index) for index in range(spec.num_hosts))
        with ExitStack() as undo:
            try:
                self._switch = _new_network(undo)
                self._networks = tuple(_new_network(undo) for _ in self._hosts)
                self._ports = self._lay_cables()
                self._uplinks = tuple(self._configure(host) for host in self._hosts)
            except (OSError, NetlinkError) as error:
                raise FabricError(_explain(spec, error)) from error
            self._descriptors = undo.pop_all()

    @property
    def spec(self) -> FabricSpec:
        """What was asked for."""
        return self._spec

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts by index."""
        return self._hosts

    def enter(self, host: int) -> None:
        """Join a host's network, host name and hosts file."""
        check_host(self._spec, host)
        try:
            namespaces.join(self._networks[host], self._hosts[host], self._hosts)
        except OSError as error:
            raise FabricError(f"cannot enter host {host}: {error}; enter it before any thread starts") from error
        self.close()

    def counters(self) -> tuple[Counters, ...]:
        """Read every cable, both ways, as the queues counted it."""
        with namespaces.inside(self._switch), IPRoute() as ip:
            received = [links.sent(ip, port) for port in self._ports]
        return tuple(
            Counters(tx_bytes=tx[0], tx_packets=tx[1], rx_bytes=rx[0], rx_packets=rx[1], resent_segments=resent)
            for (tx, resent), rx in zip(map(self._sent, self._hosts), received, strict=True)
        )

    def close(self) -> None:
        """Let go of the namespaces; the kernel removes those without processes."""
        self._descriptors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lay_cables(self) -> tuple[int, ...]:
        shaping = self._shaping()
        with namespaces.inside(self._switch), IPRoute() as ip:
            switch = links.add_switch(ip)
            ports = tuple(
                links.add_cable(ip, switch, host, network, self._spec.mtu)
                for host, network in enumerate(self._networks)
            )
            for port in ports:
                links.add_queue(ip, port, shaping)
        return ports

    def _configure(self, host: Host) -> int:
        with namespaces.inside(self._networks[host.index]), IPRoute() as ip:
            uplink = links.configure_host(ip, host, SUBNET, self._spec.congestion)
            links.add_queue(ip, uplink, self._shaping())
        return uplink

    def _shaping(self) -> Shaping | None:
        if self._spec.rate_bps is None:
            return None
        return shaping_for(self._spec.rate_bps, self._spec.mtu)

    def _sent(self, host: Host) -> tuple[tuple[int, int], int]:
        with namespaces.inside(self._networks[host.index]), IPRoute() as ip:
            return links.sent(ip, self._uplinks[host.index]), links.resent_segments()


def _check_congestion(name: str) -> None:
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    if name not in available:
        raise FabricError(
            f"congestion control {name!r} is not in this kernel; use one of {', '.join(available)}, "
            f"or load the kernel module tcp_{name}"
        )


def _new_network(undo: ExitStack) -> int:
    network = namespaces.new_network()
    undo.callback(os.close, network)
    return network


def _host(index: int) -> Host:
    prefix = SUBNET.rpartition(".")[0]
    return Host(index=index, name=f"host{index}", address=f"{prefix}.{index + 1}", interface=links.UPLINK)


def _explain(spec: FabricSpec, error: OSError | NetlinkError) -> str:
    code = error.errno if isinstance(error, OSError) else error.code
    if code == errno.EPERM:
        return (
            f"cannot build the emulated fabric: {error}; build it in a process started with "
            "fabric.api.command_prefix, or use the native fabric (--fabric native, --rate none)"
        )
    return (
        f"cannot build the emulated fabric at rate_bps={spec.rate_bps}: {error}; "
        "`crossover-bench doctor` shows what this kernel lacks; "
        "the native fabric (--fabric native, --rate none) needs none of it"
    )
