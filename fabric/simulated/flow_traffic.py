"""What flows without jobs ask of a network, as plain values: groups of flows or a mixed load, and who serves them.

senders = FlowGroup(name="senders", sources=(1, 2, 3, 4), destinations=(0,), num_bytes=1e6)
PacketTraffic(groups=(senders,))                    # every packet, by the network's transport
FluidTraffic(groups=(senders,), scheduler="varys")  # fluids, by a scheduler
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fabric.simulated.switches import SwitchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowGroup:
    """Flows that are alike: `num_bytes` of payload from each of `sources` to the destination at the same place, or
    from all to the only one, `num_times` times every `every_s` from `start_s` on. A seed draws by how much, at most
    `jitter_s`, each starts later: hosts are never in step to the picosecond. Once a group and those before it are
    there, what waits for it takes `use_s`, as a layer's forward for its gradients."""

    name: str
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    num_bytes: float
    start_s: float = 0.0
    every_s: float = 0.0
    num_times: int = 1
    jitter_s: float = 1e-6
    use_s: float = 0.0


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


class Hybrid(StrEnum):
    """Whose circuits join racks."""

    HELIOS = "helios"
    C_THROUGH = "c-through"


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuits:
    """Circuits of `gbit` beside the packet network, `num_per_rack` in Helios and one in c-Through. Every `epoch_ms`
    they are set anew, and are dark for the first `setting_ms`."""

    hybrid: Hybrid
    gbit: float = 10.0
    setting_ms: float = 27.0
    epoch_ms: float = 127.0
    num_per_rack: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FluidTraffic:
    """Flows as fluids until all have ended, served by a `scheduler` (`fabric.simulated.scheduling.SCHEDULERS`).

    A group is a coflow, and its place its priority, the first group's the best; of a mixed load each flow is a coflow.
    With `circuits` the network's hosts are racks, and every flow is there from the start.
    """

    groups: tuple[FlowGroup, ...] = ()
    mixed: MixedLoad | None = None
    scheduler: str = "fair"
    circuits: Circuits | None = None
