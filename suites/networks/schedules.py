"""Who serves flows, over which path, and over circuits: the suite's cells of fluids without jobs.

Only a mixed load draws anything. All else is what training sends, and comes out the same at every repeat, so one is
enough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fabric.api import FabricKind, FabricSpec, NetworkSpec, Paths
from fabric.simulated.flow_traffic import Circuits, FlowGroup, FluidTraffic, Hybrid, MixedLoad
from harness.trial import Trial
from models.layer_profile import Profile, load_profile
from suites.networks.packets import NAME

FLOAT32_BYTES = 4
SMALL = "leaf-spine(leaves=4, spines=4, hosts_per_leaf=4, gbit=10)"
THIN = "leaf-spine(leaves=4, spines=1, hosts_per_leaf=4, gbit=25)"  # four hosts behind one uplink
RING_HOSTS, RING_TOPOLOGY = 128, "fat-tree(k=8, gbit=25)"
LAYERS_OF = ("resnet50", "vgg16")
NUM_RACKS, PACKET_GBIT, CIRCUIT_GBIT = 8, 10, 100
RACK_MEGABYTES = (1, 4, 16, 64, 256, 1024)
WAYS = (("packets", None), *((kind.value, Circuits(hybrid=kind, gbit=CIRCUIT_GBIT)) for kind in Hybrid))


def schedule_cells() -> list[Trial]:
    """One trial of every experiment in which nothing is drawn."""
    return [cell for group in (coflows(), servers(), layers(), paths(), patterns(), rack_sizes()) for cell in group]


def schedule_cell(
    group: str,
    label: str,
    topology: str,
    traffic: FluidTraffic,
    *,
    choice: Paths = Paths.ECMP,
    axis: str = "",
    at: float = 0.0,
) -> Trial:
    """One trial of fluids."""
    network = NetworkSpec(topology=topology, paths=choice)
    return Trial(
        suite=NAME,
        cell=f"{group}/fluids/{label}",
        jobs=(),
        fabric=FabricSpec(kind=FabricKind.SIMULATED, num_hosts=1, rate_bps=None, network=network),
        traffic=traffic,
        axis=axis,
        at=at if axis else None,
    )


def gradients_bytes(profile: Profile) -> float:
    """All gradients of a network, in float32."""
    return float(FLOAT32_BYTES * profile.num_parameters)


def ring_bytes(num_ranks: int, num_bytes: float) -> float:
    """What each rank of a ring sends to the next one for an all-reduce."""
    return 2 * (num_ranks - 1) / num_ranks * num_bytes


def mixed_loads() -> Iterator[Trial]:
    """pFabric and PIAS: short and long flows at 70 % of the hosts' links."""
    for scheduler in ("fair", "pfabric", "pias"):
        traffic = FluidTraffic(mixed=MixedLoad(num_flows=500, load=0.7), scheduler=scheduler)
        yield schedule_cell("schedule-mixed-70", scheduler, SMALL, traffic)


def coflows() -> Iterator[Trial]:
    """Varys: rings of four networks, each with a rank behind every uplink, all at once. A ring is a coflow."""
    rings = []
    for job, name in enumerate(("resnet50", "vgg16", "bert_large", "gpt2")):
        hosts = tuple(4 * leaf + job for leaf in range(4))
        num_bytes = ring_bytes(4, gradients_bytes(load_profile(f"{name}-v100")))
        rings.append(around(name, hosts, num_bytes))
    for scheduler in ("fifo", "fair", "pfabric", "varys"):
        yield schedule_cell("schedule-jobs", scheduler, THIN, FluidTraffic(groups=tuple(rings), scheduler=scheduler))


def servers() -> Iterator[Trial]:
    """Varys where flows mislead: twelve workers push ResNet-50 to one server, and a ring of VGG-16 is behind the same
    uplinks. Each push is smaller than each of the ring's flows, and all of them together are larger."""
    resnet, vgg = (gradients_bytes(load_profile(f"{name}-v100")) for name in ("resnet50", "vgg16"))
    pushed = FlowGroup(name="resnet50", sources=tuple(range(4, 16)), destinations=(0,), num_bytes=resnet, jitter_s=0.0)
    groups = (pushed, around("vgg16", (1, 5, 9, 13), ring_bytes(4, vgg)))
    for scheduler in ("fifo", "fair", "pfabric", "varys"):
        yield schedule_cell("schedule-servers", scheduler, THIN, FluidTraffic(groups=groups, scheduler=scheduler))


def layers() -> Iterator[Trial]:
    """P3's order inside the network: four workers push each layer's gradients, as backward makes them, to four servers
    that hold a quarter of it each. The first layer's group comes first: forward waits for it."""
    for name in LAYERS_OF:
        groups = tuple(pushes(load_profile(f"{name}-v100")))
        for label, scheduler in (
            ("fifo", "fifo"),
            ("fair", "fair"),
            ("training", f"training(num_priorities={len(groups)})"),
        ):
            topology = "leaf-spine(leaves=1, spines=1, hosts_per_leaf=8, gbit=10)"
            traffic = FluidTraffic(groups=groups, scheduler=scheduler)
            yield schedule_cell(f"schedule-layers-{name}", label, topology, traffic)


def pushes(profile: Profile) -> Iterator[FlowGroup]:
    """The gradients of each layer from four workers to four servers."""
    pairs = [(worker, server) for worker in range(4) for server in range(4, 8)]
    sources, destinations = zip(*pairs, strict=True)
    for place, layer in enumerate(profile.layers):
        size = FLOAT32_BYTES * sum(math.prod(parameter.shape) for parameter in layer.parameters)
        yield FlowGroup(
            name=layer.name, sources=sources, destinations=destinations, num_bytes=size / 4, jitter_s=0.0,
            start_s=math.fsum(later.backward_s for later in profile.layers[place:]), use_s=layer.forward_s,
        )  # fmt: skip


def paths() -> Iterator[Trial]:
    """Hedera: one flow per host of a fat-tree, in strides or around a ring of random order; and FiConn's detours."""
    hosts = np.arange(RING_HOSTS)
    num_bytes = ring_bytes(RING_HOSTS, gradients_bytes(load_profile("vgg16-v100")))
    flows = {"stride": FlowGroup(
        name="stride", sources=tuple(hosts.tolist()), destinations=tuple(((hosts + 32) % RING_HOSTS).tolist()),
        num_bytes=num_bytes, jitter_s=0.0,
    )}  # fmt: skip
    for number in (1, 2, 3):
        order = np.random.default_rng(number).permutation(RING_HOSTS)
        flows[f"ring-{number}"] = around("ring", tuple(order.tolist()), num_bytes)
    for name, group in flows.items():
        for choice in Paths:
            yield schedule_cell(f"paths-{name}", choice, RING_TOPOLOGY, FluidTraffic(groups=(group,)), choice=choice)
    far = FlowGroup(
        name="far", sources=(0, 1, 2, 3) * 2, destinations=(44, 45, 46, 47) * 2, num_bytes=num_bytes, jitter_s=0.0
    )
    for choice in (Paths.ECMP, Paths.LEAST_LOADED):
        yield schedule_cell("paths-ficonn", choice, "ficonn(n=4, k=2)", FluidTraffic(groups=(far,)), choice=choice)


def around(name: str, hosts: tuple[int, ...], num_bytes: float) -> FlowGroup:
    """Each host sends to the next one, the last to the first."""
    return FlowGroup(name=name, sources=hosts, destinations=(*hosts[1:], hosts[0]), num_bytes=num_bytes, jitter_s=0.0)


def patterns() -> Iterator[Trial]:
    """What VGG-16's gradients take between eight racks, by how they are exchanged, with and without circuits."""
    racks, total = tuple(range(NUM_RACKS)), gradients_bytes(load_profile("vgg16-v100"))
    ordered = [(a, b) for a in racks for b in racks if a != b]
    exchanges = (
        around("ring", racks, ring_bytes(NUM_RACKS, total)),
        FlowGroup(
            name="all-to-all", sources=tuple(a for a, _ in ordered), destinations=tuple(b for _, b in ordered),
            num_bytes=2 * total / NUM_RACKS, jitter_s=0.0,
        ),
        FlowGroup(name="server", sources=racks[1:], destinations=(0,), num_bytes=total, jitter_s=0.0),
    )  # fmt: skip
    for group in exchanges:
        for label, circuits in WAYS:
            traffic = FluidTraffic(groups=(group,), circuits=circuits)
            yield schedule_cell(f"circuits-{group.name}", label, between_racks(), traffic)


def rack_sizes() -> Iterator[Trial]:
    """How much a ring has to send before setting circuits pays."""
    for megabytes in RACK_MEGABYTES:
        for label, circuits in WAYS:
            group = around("ring", tuple(range(NUM_RACKS)), megabytes * 1e6)
            traffic = FluidTraffic(groups=(group,), circuits=circuits)
            yield schedule_cell(
                f"circuits-{megabytes}", label, between_racks(), traffic, axis="megabytes per rack", at=megabytes
            )


def between_racks() -> str:
    """The packet network: a rate into and out of each rack."""
    return f"leaf-spine(leaves=1, spines=1, hosts_per_leaf={NUM_RACKS}, gbit={PACKET_GBIT})"
