"""Values and the protocol of a fabric: the network that ranks run over."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Protocol, Self

from fabric.network import NetworkSpec

MAX_HOSTS = 64
MAX_HOSTS_IN_LOCKSTEP = 1024
MAX_SIMULATED_HOSTS = 16_384
MIN_RATE_BPS = 1e6
MAX_RATE_BPS = 30e9  # tbf's rate field holds 32 bits of bytes per second
MAX_PACED_RATE_BPS = 10e12
MAX_ALPHA_S = 1.0
MAX_VIRTUAL = 4096
MIN_MTU = 576
MAX_MTU = 9000


class FabricError(ValueError):
    """A fabric that was asked for and cannot be had: names the value and the remedy."""


class FabricKind(StrEnum):
    """What carries the messages. Every number printed says which it was."""

    NATIVE = "native"
    EMULATED = "emulated"
    PACED = "paced"
    LOCKSTEP = "lockstep"
    SIMULATED = "simulated"

    @property
    def has_processes(self) -> bool:
        """Whether each rank is a process whose messages travel. In lockstep one process computes for all of them, in no
        time of its own, and the link only says what its predicted time is that of; simulated ranks compute nothing."""
        return self not in (FabricKind.LOCKSTEP, FabricKind.SIMULATED)

    @property
    def is_enclosed(self) -> bool:
        """Whether its hosts are in namespaces of their own, which whoever builds them enters as it starts."""
        return self is FabricKind.EMULATED

    @property
    def has_clock(self) -> bool:
        """Whether steps take time there: that of this machine, or that of the virtual clock."""
        return self is not FabricKind.LOCKSTEP


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSpec:
    """What is asked of a fabric.

    `rate_bps` is each host's line rate in bit/s, both ways, Ethernet headers included; None means
    unshaped. `mtu` (bytes) and `congestion` (TCP congestion control) belong to the emulated fabric.
    The native fabric is whatever it is, so it accepts no rate. On the paced fabric `rate_bps` is what a
    host's link carries in bit/s of payload, `alpha_s` the time a step of a collective takes beside its bytes, and
    `num_virtual`, where it is not 0, the number of ranks that the one real rank of a job pays for: itself and
    num_virtual − 1 equal peers that do not exist. In lockstep `num_hosts` are the virtual ranks of one process, and
    `rate_bps` and `alpha_s` the link for which a step's time is predicted. On the simulated fabric `network` names the
    topology with its rates, and `alpha_s` is the software's part of each round of flows. Raises FabricError.
    """

    kind: FabricKind
    num_hosts: int = 2
    rate_bps: float | None = 200e6
    mtu: int = 1500
    congestion: str = "cubic"
    alpha_s: float = 0.0
    num_virtual: int = 0
    network: NetworkSpec | None = None

    def __post_init__(self) -> None:
        most = _most_hosts(self.kind)
        if not 1 <= self.num_hosts <= most:
            raise FabricError(f"num_hosts={self.num_hosts} is out of range; choose 1 to {most} hosts")
        _check_network(self)
        if self.rate_bps is not None:
            _check_rate(self.kind, self.rate_bps)
        if not MIN_MTU <= self.mtu <= MAX_MTU:
            raise FabricError(
                f"mtu={self.mtu} is out of range; choose {MIN_MTU} to {MAX_MTU} bytes, usually 1500 or 9000"
            )
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,14}", self.congestion):
            raise FabricError(f"{self.congestion!r} is no TCP congestion control; use cubic or reno")
        _check_paced(self)

    @property
    def num_ranks(self) -> int:
        """Ranks of a job as its collectives count them: real ones, or those that one real rank pays for."""
        return self.num_virtual or self.num_hosts


def _most_hosts(kind: FabricKind) -> int:
    if kind is FabricKind.SIMULATED:
        return MAX_SIMULATED_HOSTS
    return MAX_HOSTS if kind.has_processes else MAX_HOSTS_IN_LOCKSTEP


def _check_network(spec: FabricSpec) -> None:
    if spec.kind is not FabricKind.SIMULATED:
        if spec.network is not None:
            raise FabricError(
                f"network {spec.network.topology!r} on the {spec.kind} fabric; use the simulated one "
                "(--fabric simulated), or name no network"
            )
        return
    if spec.network is None:
        raise FabricError("the simulated fabric needs a network; name one, e.g. --network 'fat-tree(k=8, gbit=25)'")
    if spec.rate_bps is not None:
        raise FabricError(
            f"rate_bps={spec.rate_bps:g} on a simulated network, which has its own rates; leave it out (--rate none) "
            f"and set them there, e.g. --network 'fat-tree(k=8, gbit={spec.rate_bps / 1e9:g})'"
        )


def _check_paced(spec: FabricSpec) -> None:
    has_alpha = spec.kind in (FabricKind.PACED, FabricKind.LOCKSTEP, FabricKind.SIMULATED)
    if (spec.alpha_s and not has_alpha) or (spec.num_virtual and spec.kind is not FabricKind.PACED):
        raise FabricError(
            f"alpha_s={spec.alpha_s:g} and num_virtual={spec.num_virtual} are for the paced fabric, and this one is "
            f"{spec.kind}; leave them 0, or use the paced fabric (--fabric paced)"
        )
    if not 0 <= spec.alpha_s <= MAX_ALPHA_S:
        raise FabricError(
            f"alpha_s={spec.alpha_s:g} is out of range; choose 0 to {MAX_ALPHA_S:g} s, usually 10 to 50 µs"
        )
    if spec.num_virtual and not 2 <= spec.num_virtual <= MAX_VIRTUAL:
        raise FabricError(
            f"num_virtual={spec.num_virtual} is out of range; choose 2 to {MAX_VIRTUAL} ranks, or 0 for none"
        )
    if spec.num_virtual and spec.num_hosts != 1:
        raise FabricError(
            f"num_virtual={spec.num_virtual} with num_hosts={spec.num_hosts}: virtual peers stand beside one real "
            "rank; use num_hosts=1, or num_virtual=0 for real ranks alone"
        )


def _check_rate(kind: FabricKind, rate_bps: float) -> None:
    if kind is FabricKind.NATIVE:
        raise FabricError(
            f"the native fabric cannot be shaped to rate_bps={rate_bps:g}; "
            "ask for no rate (rate_bps=None, --rate none) or for the paced or the emulated fabric"
        )
    modelled = kind in (FabricKind.PACED, FabricKind.LOCKSTEP)
    highest_bps = MAX_PACED_RATE_BPS if modelled else MAX_RATE_BPS
    if not (math.isfinite(rate_bps) and MIN_RATE_BPS <= rate_bps <= highest_bps):
        raise FabricError(
            f"rate_bps={rate_bps:g} is out of range; choose {MIN_RATE_BPS:g} to {highest_bps:g} bit/s, "
            "or None (--rate none) for unshaped links"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host as its ranks see it: `interface` carries `address`, `name` resolves to it on every host."""

    index: int
    name: str
    address: str
    interface: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What crossed a host's link since it was built: bytes and packets with their Ethernet headers, and how many of the
    packets sent were segments of TCP sent again."""

    tx_bytes: int
    tx_packets: int
    rx_bytes: int
    rx_packets: int
    resent_segments: int = 0

    def __sub__(self, earlier: Counters) -> Counters:
        """Return what crossed the link since `earlier`."""
        return Counters(
            tx_bytes=self.tx_bytes - earlier.tx_bytes,
            tx_packets=self.tx_packets - earlier.tx_packets,
            rx_bytes=self.rx_bytes - earlier.rx_bytes,
            rx_packets=self.rx_packets - earlier.rx_packets,
            resent_segments=self.resent_segments - earlier.resent_segments,
        )


class Cluster(Protocol):
    """Hosts joined by a network, from `build` until `close`. Also a context manager that closes."""

    @property
    def spec(self) -> FabricSpec:
        """What was asked for, which is what there is."""
        ...

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts by index."""
        ...

    def enter(self, host: int) -> None:
        """Make the calling process a process of `host`, for good.

        Call it once, in a child forked by the process that built the cluster, before the child
        starts a thread. The child is killed when the thread that forked it ends, so fork from one
        that stays. Raises FabricError if the host does not exist or cannot be joined.
        """
        ...

    def counters(self) -> tuple[Counters, ...] | None:
        """Read each host's link, from the building process. None where hosts share one interface."""
        ...

    def close(self) -> None:
        """Take the network down. Idempotent; a host lives on while processes are still in it."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_host(spec: FabricSpec, host: int) -> None:
    """Raise FabricError unless `host` is an index of the cluster."""
    if not 0 <= host < spec.num_hosts:
        raise FabricError(f"host {host} does not exist; the cluster has hosts 0 to {spec.num_hosts - 1}")
