"""The suite `networks`: steps of four networks on every topology, transports, placements, failures, jobs that meet;
and the papers' own experiments with flows alone, in the packet engine and as fluids.

Steps run on the virtual clock over simulated flows, so one repeat says all. Flows without jobs draw their starts and
sizes by a seed, and repeat for a spread. Whatever else the machine does changes nothing. Profiles are of a V100;
tensors have their real sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from crossover import Sharing
from fabric.api import FabricKind, FabricSpec, HostChoice, NetworkSpec, Paths
from harness.trial import Job, Link, Trial
from models.workload import Device, WorkloadSpec
from suites.api import Options, Suite, interleave
from suites.networks.packets import NAME, packet_cells
from suites.networks.places import DRAWS, FAMILIES, MIDDLE, SIZES, random_fat_tree
from suites.networks.schedules import mixed_loads, schedule_cells

STRATEGY = "fixed-buckets"
MODELS = (("resnet50", 32), ("vgg16", 32), ("bert_large", 8), ("gpt2", 8))  # samples per worker and step
TRANSPORTS = ("fluid", "dctcp", "infiniband", "roce-v2", "irn", "hpcc", "dcqcn", "timely")
FAILURES = (0, 4, 16)
EXCHANGES = ("all-reduce", "tree", "hierarchical(ranks_per_host=4)", "parameter-server")
OVERSUBSCRIBED = FAMILIES["leaf-spine-4to1"][MIDDLE]
WAYS = (
    (Sharing.EXCLUSIVE, Link.FIFO),
    (Sharing.NAIVE, Link.FIFO),
    (Sharing.CASSINI, Link.FIFO),
    (Sharing.CROSSOVER, Link.FAIR),
    (Sharing.CROSSOVER, Link.FIFO),
)


def replayed(model: str, batch_size: int, name: str = "job", strategy: str = STRATEGY) -> Job:
    """A job of this network on a V100."""
    workload = WorkloadSpec(network=model, device=Device.REPLAY, batch_size=batch_size)
    return Job(name=name, workload=workload, strategy=strategy, optimizer="sgd(lr=0.1)")


def cell(group: str, label: str, jobs: tuple[Job, ...], num_ranks: int, network: NetworkSpec, **more: object) -> Trial:
    """One trial; steps repeat exactly from the second on."""
    workloads = "+".join(job.workload.label for job in jobs)
    return Trial(
        suite=NAME,
        cell=f"{group}/{workloads}/{label}",
        jobs=jobs,
        fabric=FabricSpec(kind=FabricKind.SIMULATED, num_hosts=num_ranks, rate_bps=None, network=network),
        num_warmup=2,
        **{"num_steps": 2, **more},  # type: ignore[arg-type]
    )


def topologies(sizes: Sequence[int] = SIZES) -> Iterator[Trial]:
    """Every model on every family at every size."""
    for place, num_ranks in enumerate(SIZES):
        for family, texts in FAMILIES.items():
            for model, batch_size in MODELS:
                if num_ranks in sizes:
                    network = NetworkSpec(topology=texts[place])
                    yield cell(f"step-{num_ranks}", family, (replayed(model, batch_size),), num_ranks, network)


def placements() -> Iterator[Trial]:
    """32 of 128 hosts next to each other, apart, or anywhere; for these, and for all hosts in any order, paths that are
    chosen by load too. What is anywhere is drawn several times where paths have a choice."""
    for family in ("fat-tree", "leaf-spine-4to1", "vl2", "torus"):
        for choice in HostChoice:
            network = NetworkSpec(topology=FAMILIES[family][MIDDLE], placement=choice)
            yield placement(32, f"{family}-{choice}", network)
    for num_ranks, paths, draw in product((32, 128), Paths, DRAWS):
        network = random_fat_tree(paths, draw)
        label = "fat-tree-random" if paths is Paths.ECMP else f"fat-tree-random-{paths}"
        if (num_ranks, paths, draw) != (32, Paths.ECMP, 1):  # stands above
            yield placement(num_ranks, label if draw == 1 else f"{label}-{draw}", network)


def placement(num_ranks: int, label: str, network: NetworkSpec) -> Trial:
    """VGG-16 there."""
    return cell(f"placement-{num_ranks}", label, (replayed("vgg16", 32),), num_ranks, network)


def transports() -> Iterator[Trial]:
    """Each transport by its law, on a fat-tree of 128 hosts."""
    for transport in TRANSPORTS:
        network = NetworkSpec(topology=FAMILIES["fat-tree"][MIDDLE], transport=transport)
        yield cell("transport-128", transport, (replayed("vgg16", 32),), 128, network)


def failures() -> Iterator[Trial]:
    """Cables that fail one after the other, where there are other ways to go."""
    for family in ("fat-tree", "bcube", "dcell"):
        for num_failed in FAILURES:
            network = NetworkSpec(topology=FAMILIES[family][MIDDLE], num_failed=num_failed)
            jobs = (replayed("vgg16", 32),)
            yield cell(f"failed-{family}-{num_failed}", family, jobs, 128, network, axis="failed cables", at=num_failed)


def exchanges() -> Iterator[Trial]:
    """Ways to combine gradients, on a network with and one without full bisection."""
    for family in ("fat-tree", "leaf-spine-4to1"):
        for exchange in EXCHANGES:
            network = NetworkSpec(topology=FAMILIES[family][0])
            job = replayed("resnet50", 32, strategy=f"{STRATEGY}+{exchange}")
            yield cell("exchange-16", f"{family}-{exchange.partition('(')[0]}", (job,), 16, network)


def published() -> Iterator[Trial]:
    """Eight servers of a full-rate switch, as in Zhang et al., Is Network the Bottleneck of Distributed Training?
    (arXiv 2006.10103): the scaling factor of a network that is used in full, and half the bytes on a slower one."""
    for gbit, strategies in ((100, (STRATEGY,)), (10, (STRATEGY, f"{STRATEGY}+half"))):
        network = NetworkSpec(topology=f"leaf-spine(leaves=1, spines=1, hosts_per_leaf=8, gbit={gbit})")
        for model in ("resnet50", "resnet101", "vgg16"):
            for strategy in strategies:
                label = strategy.rpartition("+")[2]
                yield cell(f"published-{gbit}", label, (replayed(model, 32, strategy=strategy),), 8, network)


def shared() -> Iterator[Trial]:
    """Two jobs that meet on an oversubscribed network: on hosts of their own, or on the same hosts."""
    for own_hosts in (True, False):
        network = NetworkSpec(topology=OVERSUBSCRIBED, placement=HostChoice.SPREAD, own_hosts=own_hosts)
        jobs = (replayed("resnet50", 32, "a"), replayed("vgg16", 32, "b"))
        for sharing, link in WAYS:
            label = sharing.value if link is Link.FIFO else f"{sharing.value}-fair-link"
            group = "own-hosts" if own_hosts else "same-hosts"
            more = {
                "sharing": sharing,
                "link": link,
                "num_steps": 12,
                "num_cost_steps": int(sharing is Sharing.EXCLUSIVE),
            }
            yield cell(group, label, jobs, 32, network, **more)


def grid(options: Options) -> Sequence[Trial]:
    """Every question; one of each kind for a first look."""
    if options.smoke:
        return [*topologies(SIZES[:1]), *list(shared())[:5], *packet_cells()[:2], *schedule_cells()[:4]]
    jobs = [*topologies(), *placements(), *transports(), *failures(), *exchanges(), *published(), *shared()]
    drawn = [*packet_cells(), *mixed_loads()]
    return [*jobs, *schedule_cells(), *interleave(drawn, options.num_repeats())]


SUITE = Suite(
    name=NAME,
    question="What does a training step cost on each data-centre network, transport and placement?",
    grid=grid,
    fabric=FabricKind.SIMULATED,
)
