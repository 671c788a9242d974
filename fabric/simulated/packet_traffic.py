"""What is asked of the packet engine, as plain values: groups of flows, or a mixed load, and what is looked at.

PacketTraffic(groups=(FlowGroup(name="senders", sources=(1, 2, 3, 4), destinations=(0,), num_bytes=1e6),))
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fabric.simulated.switches import SwitchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGroup:
    """Flows that are alike: `num_bytes` of payload from each of `sources` to the destination at the same place, or
    from all to the only one, `num_times` times every `every_s` from `start_s` on. A seed draws by how much, at most
    `jitter_s`, each starts later: hosts are never in step to the picosecond."""

    name: str
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    num_bytes: float
    start_s: float = 0.0
    every_s: float = 0.0
    num_times: int = 1
    jitter_s: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedLoad:
    """`num_flows` Poisson arrivals between random hosts at `load` of the hosts' links, drawn by a seed: `short_share`
    of them uniform in `short_bytes`, the rest in `long_bytes`, which hold most of the bytes."""

    num_flows: int
    load: float
    short_share: float = 0.85
    short_bytes: tuple[float, float] = (1e3, 1e5)
    long_bytes: tuple[float, float] = (1e6, 3e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketTraffic:
    """Flows of the network's transport until all have ended or `until_s`. Goodput and queues count from `from_s` on;
    `num_samples` looks at the queue towards the host `watched` from there to `until_s`."""

    groups: tuple[FlowGroup, ...] = ()
    mixed: MixedLoad | None = None
    until_s: float = 10.0
    from_s: float = 0.0
    num_samples: int = 0
    watched: int = 0
    switches: SwitchSettings = field(default_factory=SwitchSettings)
