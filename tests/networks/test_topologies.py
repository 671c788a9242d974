"""Topologies: closed forms against what was built, routes against the graph."""

from __future__ import annotations

import time
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measures import bisection_bps, cut_bps, diameter, lower_half, path_nodes, server_hops
from patience import cpu_limit_s

from fabric.simulated.graph import NetworkError, NetworkGraph
from fabric.simulated.routing import all_paths, route
from fabric.simulated.topologies import (
    BCube,
    DCell,
    FatTree,
    FiConn,
    LeafSpine,
    MdCube,
    SwitchRing,
    Topology,
    Torus,
    Vl2,
    parse_topology,
)

SMALL: list[Topology] = [
    *(FatTree(k) for k in (2, 4, 6, 8, 10)),
    *(LeafSpine(*sizes) for sizes in ((2, 1, 1), (4, 2, 8), (6, 6, 6), (8, 3, 4), (10, 4, 2))),
    *(Vl2(*ports) for ports in ((4, 4), (8, 4), (4, 8), (6, 4), (8, 6))),
    *(BCube(n, k) for n, k in ((2, 2), (4, 1), (4, 2), (6, 1), (8, 1), (2, 5))),
    *(DCell(n, k) for n, k in ((2, 1), (4, 1), (2, 2), (3, 2), (6, 1))),
    *(FiConn(n, k) for n, k in ((4, 1), (4, 2), (8, 1), (6, 2), (12, 1))),
    *(
        MdCube(n, k, grid)
        for n, k, grid in ((2, 1, (2,)), (4, 1, (3, 3)), (4, 1, (5,)), (2, 2, (2, 3)), (3, 1, (2, 2)))
    ),
    *(SwitchRing(*sizes) for sizes in ((3, 1), (4, 2), (5, 2), (6, 3), (8, 1))),
    *(Torus(sides) for sides in ((4, 4), (3, 5), (2, 4), (4, 4, 4), (8, 3, 2), (6,))),
]
# small enough for an exact search of all halvings
TINY: list[Topology] = [
    *(Torus(sides) for sides in ((2, 2), (5,), (2, 3), (2, 2, 3), (3, 3), (3, 4), (3, 5), (5, 4), (3, 3, 2))),
    *(BCube(n, k) for n, k in ((3, 0), (4, 0), (2, 2), (3, 1), (4, 1))),
    *(DCell(n, k) for n, k in ((3, 0), (2, 1), (3, 1), (4, 1))),
    *(FiConn(n, k) for n, k in ((6, 0), (2, 1), (2, 2), (4, 1), (6, 1))),
    *(MdCube(n, k, grid) for n, k, grid in ((2, 0, (2,)), (2, 1, (2,)), (2, 1, (4,)), (3, 1, (2, 2)), (2, 2, (2, 3)))),
    *(MdCube(2, 1, grid, container_gbit=gbit) for grid, gbit in (((2,), 1000), ((3,), 4))),
    *(SwitchRing(*sizes) for sizes in ((3, 1), (3, 2), (4, 1), (5, 2), (7, 3), (5, 5))),
    *(LeafSpine(*sizes) for sizes in ((1, 1, 5), (3, 1, 2), (3, 2, 3), (4, 1, 3))),
    *(LeafSpine(*sizes, spine_gbit=gbit) for *sizes, gbit in ((1, 2, 4, 1), (3, 1, 2, 25), (3, 2, 3, 4), (4, 2, 2, 3))),
    *(FatTree(2), FatTree(4), FatTree(4, core_gbit=2.5), FatTree(4, pod_gbit=4, core_gbit=20)),
    *(Vl2(2, 2), Vl2(4, 2)),
]
LARGE: list[Topology] = [
    FatTree(16),
    LeafSpine(32, 16, 32),
    Vl2(16, 16),
    BCube(4, 4),
    DCell(6, 2),
    FiConn(12, 2),
    MdCube(8, 1, (4, 4)),
    Torus((32, 32)),
    Torus((16, 8, 8)),
]
SERVER_CENTRIC = (BCube, DCell, FiConn, MdCube)


def named(topology: Topology) -> str:
    return topology.build().name


def pairs_of(graph: NetworkGraph, limit: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Every ordered pair of hosts, or a fixed sample of them."""
    sources, destinations = (side.ravel() for side in np.indices((graph.num_hosts, graph.num_hosts)))
    different = np.flatnonzero(sources != destinations)
    kept = np.random.default_rng(0).permutation(different)[:limit]
    return sources[kept], destinations[kept]


@pytest.mark.parametrize("topology", SMALL, ids=named)
def test_counts_and_diameter_are_those_of_the_paper(topology: Topology) -> None:
    graph, facts = topology.build(), topology.facts()
    assert (graph.num_hosts, graph.num_switches, graph.num_cables) == (
        facts.num_hosts,
        facts.num_switches,
        facts.num_cables,
    )
    pairs = {tuple(sorted(pair)) for pair in graph.ends.tolist()}
    assert len(pairs) == graph.num_cables, "two cables join the same nodes"
    longest = diameter(graph)
    assert longest == facts.max_edges if facts.diameter_is_exact else 0 < longest <= facts.max_edges
    if isinstance(topology, SERVER_CENTRIC):
        assert server_hops(graph) <= facts.max_server_hops


@pytest.mark.parametrize("topology", SMALL, ids=named)
def test_the_cut_through_the_middle_is_the_stated_bisection(topology: Topology) -> None:
    graph, facts = topology.build(), topology.facts()
    cut = cut_bps(graph, lower_half(graph))
    rng = np.random.default_rng(1)
    shuffled = cut_bps(graph, lower_half(graph)[rng.permutation(graph.num_hosts)])
    assert min(cut, shuffled) >= facts.bisection_bps * (1 - 1e-9)
    if facts.bisection_is_exact:
        half = lower_half(graph)
        if isinstance(topology, Torus):  # its hosts are numbered by the first side, which need not be the longest
            place = np.unravel_index(np.arange(graph.num_hosts), topology.sides)
            longest = int(np.argmax(topology.sides))
            half = np.asarray(place[longest]) < topology.sides[longest] // 2
        assert cut_bps(graph, half) == pytest.approx(facts.bisection_bps, rel=1e-9)


@pytest.mark.parametrize("topology", TINY, ids=str)
def test_no_halving_of_a_small_network_cuts_less_than_the_stated_bisection(topology: Topology) -> None:
    facts = topology.facts()
    least = bisection_bps(topology.build())
    assert 0.0 < facts.bisection_bps <= least * (1 + 1e-6)  # HiGHS ends within 1e-6
    if facts.bisection_is_exact:
        assert facts.bisection_bps == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("topology", [Torus((2, 3)), DCell(2, 1), BCube(3, 1), LeafSpine(3, 1, 2)], ids=named)
def test_the_exact_search_finds_what_trying_every_halving_finds(topology: Topology) -> None:
    graph = topology.build()
    halves = (
        np.isin(range(graph.num_hosts), half) for half in combinations(range(graph.num_hosts), graph.num_hosts // 2)
    )
    assert bisection_bps(graph) == pytest.approx(min(cut_bps(graph, half) for half in halves), rel=1e-6)


@pytest.mark.parametrize("n", [6, 8, 12, 32])
def test_a_square_of_a_bcube_cuts_fewer_cables_than_half_of_a_digit(n: int) -> None:
    """Where the digits of half of the servers are small, most switches have nearly all of their servers in it."""
    graph, facts = BCube(n, 1).build(), BCube(n, 1).facts()
    digits = np.stack(np.divmod(np.arange(n * n), n))
    half = np.zeros(n * n, bool)
    half[np.argsort(digits.max(axis=0), kind="stable")[: n * n // 2]] = True
    square = cut_bps(graph, half)
    assert facts.bisection_bps <= square < cut_bps(graph, lower_half(graph))
    assert square < 1.25 * facts.bisection_bps  # the bound for all k is near to what k = 1 has


@pytest.mark.parametrize("topology", [*SMALL, *LARGE], ids=named)
def test_routes_are_chains_of_cables_without_loops(topology: Topology) -> None:
    graph, facts = topology.build(), topology.facts()
    sources, destinations = pairs_of(graph)
    paths = route(graph, sources, destinations)
    for flow, (source, destination) in enumerate(zip(sources, destinations, strict=True)):
        links = paths[flow]
        nodes = path_nodes(graph, int(source), links)
        tails = graph.ends.reshape(-1)[links]
        assert nodes[:-1] == tails.tolist()
        assert nodes[-1] == destination
        assert len(set(nodes)) == len(nodes), "a loop"
        spare = 2 if isinstance(topology, BCube) else 0  # one of its disjoint paths may take a hop aside
        assert len(links) <= facts.max_edges + 2 * spare or isinstance(topology, FiConn | MdCube)


@pytest.mark.parametrize("topology", LARGE, ids=named)
def test_a_thousand_hosts_are_built_at_once(topology: Topology) -> None:
    start = time.process_time()
    graph = topology.build()
    taken_s = time.process_time() - start
    assert graph.num_hosts >= 1024
    assert taken_s < cpu_limit_s(10.0)  # the aim is 2 s


@given(n=st.integers(2, 5), k=st.integers(0, 2), data=st.data())
def test_bcubes_paths_share_no_node_but_their_ends(n: int, k: int, data: st.DataObject) -> None:
    topology = BCube(n, k)
    hosts = st.integers(0, topology.num_hosts - 1)
    source, destination = data.draw(hosts), data.draw(hosts)
    if source == destination:
        return
    inner = [topology.nodes_of(source, destination, choice)[1:-1] for choice in range(k + 1)]
    nodes = [node for path in inner for node in path]
    assert len(nodes) == len(set(nodes))


@given(k=st.sampled_from([4, 6, 8]), seed=st.integers(0, 2**20))
def test_equal_cost_routes_reach_every_core_switch(k: int, seed: int) -> None:
    graph = FatTree(k).build()
    num_flows = 40 * (k // 2) ** 2  # e^−40 of missing one of them
    choices = np.arange(num_flows) + seed
    paths = route(graph, np.zeros(num_flows, int), np.full(num_flows, graph.num_hosts - 1), choices)
    cores = {int(graph.heads[paths[flow][2]]) for flow in range(num_flows)}
    assert len(cores) == (k // 2) ** 2


@pytest.mark.parametrize(
    ("topology", "num_paths"), [(FatTree(16), 64), (LeafSpine(2, 5, 1), 5), (Vl2(8, 4), 16), (BCube(4, 2), 3)], ids=str
)
def test_every_path_of_a_pair_is_numbered_once(topology: Topology, num_paths: int) -> None:
    graph = topology.build()
    last = graph.num_hosts - 1
    paths, choices = all_paths(graph, np.array([0]), np.array([last]))
    assert choices.tolist() == [-1 - place for place in range(num_paths)]
    assert len({tuple(paths[place].tolist()) for place in range(num_paths)}) == num_paths
    again = route(graph, [0], [last], [-1 - num_paths])
    assert again[0].tolist() == paths[0].tolist()


def test_paths_are_numbered_around_failures() -> None:
    """Of the four cores one is lost, and of the two switches above host 15 one has one cable up instead of two."""
    whole = FatTree(4).build()
    graph = whole.without(switches=[whole.num_nodes - 1])
    paths, choices = all_paths(graph, np.array([0, 0]), np.array([15, 1]))
    assert len(choices) == 3
    assert len({tuple(paths[2 * place].tolist()) for place in range(3)}) == 3
    assert len({tuple(paths[2 * place + 1].tolist()) for place in range(3)}) == 1  # under one switch: one path


def test_valiant_balancing_uses_every_intermediate_switch_also_for_near_racks() -> None:
    graph = Vl2(8, 4).build()
    paths = route(graph, [0] * 16, [41] * 16, range(16))  # racks 0 and 2 share their aggregation switches
    assert {len(paths[flow]) for flow in range(16)} == {6}
    assert len({int(graph.heads[paths[flow][2]]) for flow in range(16)}) == 4


def test_ficonn_can_go_round_by_every_other_copy() -> None:
    topology = FiConn(4, 2)
    graph = topology.build()
    paths, choices = all_paths(graph, np.array([0]), np.array([47]))
    assert len({tuple(paths[place].tolist()) for place in range(len(choices))}) == len(choices) == 3


@pytest.mark.parametrize("topology", [FatTree(4), LeafSpine(4, 4, 4), Vl2(8, 4), BCube(4, 1), Torus((4, 4))], ids=named)
def test_flows_go_round_a_failed_cable(topology: Topology) -> None:
    graph = topology.build()
    hosts = ([0] * 8, [graph.num_hosts - 1] * 8, range(8))
    failed = int(route(graph, *hosts)[0][1 if graph.num_switches else 0]) // 2
    paths = route(graph.without(cables=[failed]), *hosts)
    assert all(failed not in paths[flow] // 2 for flow in range(8))


def test_a_failed_switch_parts_its_hosts_and_the_error_says_what_to_do() -> None:
    graph = FatTree(4).build()
    with pytest.raises(NetworkError, match=r"no path is left from host 0 to host 15.*place the job"):
        route(graph.without(switches=[graph.num_hosts]), [0], [15])


def test_rates_per_tier_make_a_tree_oversubscribed() -> None:
    thin = LeafSpine(4, 2, 8, gbit=10, spine_gbit=20)  # 80 Gbit/s of hosts over 40 of cables
    assert cut_bps(thin.build(), lower_half(thin.build())) == pytest.approx(thin.facts().bisection_bps) == 80e9
    tree = FatTree(4, gbit=10, core_gbit=2.5)
    assert cut_bps(tree.build(), lower_half(tree.build())) == pytest.approx(tree.facts().bisection_bps) == 20e9


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FatTree(5), "k=5 has half ports; use an even k"),
        (lambda: LeafSpine(0), "lacks a tier"),
        (lambda: Vl2(5, 4), "half switches; use even"),
        (lambda: BCube(1), "n=1 ports join nothing"),
        (lambda: DCell(4, 4), "millions of servers"),
        (lambda: FiConn(5), "halves a port"),
        (lambda: FiConn(4, 9), "no FiConn has k=9"),
        (lambda: MdCube(2, 1, (9,)), "takes 8 switches of a container that has 4"),
        (lambda: Torus((1, 4)), "sides of 2 or more"),
        (lambda: FatTree(4, gbit=0).build(), "carries nothing"),
        (lambda: FatTree(4).build().without(cables=[999]), "cable 999 cannot fail"),
        (lambda: FatTree(4).build().without(switches=[3]), "node 3 is no switch"),
        (lambda: route(FatTree(4).build(), [0], [16]), r"outside hosts 0 to 15.*use a larger"),
        (lambda: route(FatTree(4).build(), [2], [2]), "sends to itself"),
        (lambda: parse_topology("hypercube(4)"), "is no topology; use one of bcube"),
        (lambda: parse_topology("fat-tree(j=4)"), "no parameter 'j'; it has k"),
        (lambda: parse_topology("fat-tree(k=)"), "cannot be read"),
        (lambda: parse_topology("fat-tree(k=4.0)"), "k is a whole number, not 4.0"),
        (lambda: parse_topology("fat-tree(k='8')"), "k is a whole number, not '8'"),
        (lambda: parse_topology("fat-tree(k=4, gbit=1e400)"), "gbit is a number, not inf"),
        (lambda: parse_topology(f"fat-tree(k=4, gbit=1{'0' * 400})"), "gbit is a number, not 1000"),
        (lambda: parse_topology("torus(sides=4)"), "each a whole number, not 4"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(NetworkError, match=message):
        make()


def test_a_topology_is_read_from_its_text() -> None:
    assert parse_topology("fat-tree(k=8, gbit=25)") == FatTree(8, 25)
    assert parse_topology("torus(sides=(4, 4, 2))") == Torus((4, 4, 2))
    assert parse_topology("bcube") == BCube()
