"""Flow schedulers and optical hybrids: hand-worked cases, and the orderings that the papers claim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric.simulated.flow_traffic import Circuits, Hybrid
from fabric.simulated.graph import Floats, Ints, NetworkError, NetworkGraph
from fabric.simulated.optical import HybridResult, check_circuits, matching, run_hybrid
from fabric.simulated.routing import route
from fabric.simulated.scheduling import (
    FairSharing,
    FirstInFirstOut,
    FlowPolicy,
    PFabric,
    Pias,
    ScheduledFlow,
    TrainingPriorities,
    Varys,
    estimate_demands,
    global_first_fit,
    least_loaded,
    max_min_rates,
    parse_scheduler,
    schedule_flows,
)
from fabric.simulated.topologies import FatTree, FiConn, LeafSpine, Vl2

STAR = LeafSpine(1, 1, 6, gbit=8, delay_us=0).build()  # 1 GB/s per host
POLICIES: list[FlowPolicy] = [FairSharing(), FirstInFirstOut(), PFabric(), Pias(), Varys(), TrainingPriorities(4)]
GB = 1e9


def random_flows(seed: int, num_flows: int, num_hosts: int) -> list[ScheduledFlow]:
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, num_hosts, num_flows)
    destinations = (sources + rng.integers(1, num_hosts, num_flows)) % num_hosts
    sizes = 10 ** rng.uniform(3, 7, num_flows)
    return [
        ScheduledFlow(int(a), int(b), float(size), float(start), int(coflow), int(priority))
        for a, b, size, start, coflow, priority in zip(
            sources,
            destinations,
            sizes,
            rng.uniform(0, 5e-3, num_flows),
            rng.integers(0, 4, num_flows),
            rng.integers(0, 4, num_flows),
            strict=True,
        )
    ]


def _mean_coflow_s(flows: list[ScheduledFlow], end_s: Floats) -> float:
    """All start at 0."""
    coflows = np.array([flow.coflow for flow in flows])
    return float(np.mean([end_s[coflows == coflow].max() for coflow in np.unique(coflows)]))


@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(POLICIES))
def test_every_policy_delivers_all_and_no_flow_beats_its_path(seed: int, policy: FlowPolicy) -> None:
    flows = random_flows(seed, 20, 6)
    end_s = schedule_flows(STAR, flows, policy)
    alone_s = np.array([flow.num_bytes / GB for flow in flows])
    starts = np.array([flow.start_s for flow in flows])
    assert (end_s - starts >= alone_s * (1 - 1e-6)).all()


@pytest.mark.parametrize(
    ("policy", "expected_s"),
    [
        (FairSharing(), [2.0, 3.0]),
        (FirstInFirstOut(), [2.0, 3.0]),  # they came together, and share
        (PFabric(), [1.0, 3.0]),
        (Pias((0.5e9,)), [2.0, 3.0]),  # both send 0.5 GB together, are demoted together, and share again
        (TrainingPriorities(2), [3.0, 2.0]),
        (Varys(), [1.0, 3.0]),
    ],
)
def test_two_flows_into_one_host_end_as_worked_by_hand(policy: FlowPolicy, expected_s: list[float]) -> None:
    flows = [ScheduledFlow(1, 0, GB, coflow=0, priority=1), ScheduledFlow(2, 0, 2 * GB, coflow=1, priority=0)]
    assert schedule_flows(STAR, flows, policy) == pytest.approx(expected_s, rel=1e-6)


@pytest.mark.parametrize("size", [1.0, 0.9])
def test_pfabric_serves_whoever_is_ahead_since_its_path_is_faster(size: float) -> None:
    """Two flows to one host of 10 Gbit/s, one of them over an uplink of 4: as soon as the other one has less left, it
    goes first. By hand for equal sizes: 0.8 s for the one that is never slowed, then 8 Gbit at 4 Gbit/s."""
    graph = LeafSpine(2, 1, 2, gbit=10, spine_gbit=4).build()
    end_s = schedule_flows(graph, [ScheduledFlow(2, 0, size * GB), ScheduledFlow(1, 0, GB)], PFabric())
    assert end_s == pytest.approx([2.8, 0.8] if size == 1.0 else [2.36, 0.96], rel=1e-3)


def test_first_in_first_out_lets_a_coflow_finish_before_a_later_one() -> None:
    flows = [ScheduledFlow(1, 0, 2 * GB), ScheduledFlow(2, 0, GB, start_s=0.5, coflow=1)]
    assert schedule_flows(STAR, flows, FirstInFirstOut()) == pytest.approx([2.0, 3.0], rel=1e-6)
    # one of the first coflow that starts later still goes with it
    flows.append(ScheduledFlow(3, 0, GB, start_s=1.0))
    assert schedule_flows(STAR, flows, FirstInFirstOut()) == pytest.approx([3.0, 4.0, 3.0], rel=1e-6)


def test_pias_lets_a_new_flow_overtake_one_that_was_demoted() -> None:
    flows = [ScheduledFlow(1, 0, GB), ScheduledFlow(2, 0, 0.1 * GB, start_s=0.5)]
    assert schedule_flows(STAR, flows, Pias((0.2 * GB,))) == pytest.approx([1.1, 0.6], rel=1e-6)
    assert schedule_flows(STAR, flows, FairSharing()) == pytest.approx([1.1, 0.7], rel=1e-6)


def test_varys_ends_coflows_sooner_on_average_than_fair_sharing() -> None:
    """Varys, figure 1: what counts is a coflow's last flow; its others need not be faster than that."""
    flows = [
        *(ScheduledFlow(source, destination, GB, coflow=0) for source in (0, 1) for destination in (3, 4)),
        ScheduledFlow(0, 3, 0.5 * GB, coflow=1),
        ScheduledFlow(2, 5, 3 * GB, coflow=2),
        ScheduledFlow(2, 4, 0.2 * GB, coflow=3),
    ]
    means = {
        policy.name: _mean_coflow_s(flows, schedule_flows(STAR, flows, policy)) for policy in (FairSharing(), Varys())
    }
    assert means["varys"] < 0.85 * means["fair"]


def test_pfabric_has_the_lowest_mean_completion_and_pias_comes_near_without_sizes() -> None:
    """pFabric, figure 8, and PIAS, figure 12: small flows end far sooner than under fair sharing."""
    flows = random_flows(3, 150, 6)
    starts, sizes = np.array([f.start_s for f in flows]), np.array([f.num_bytes for f in flows])
    small = sizes < 1e5
    slow = {}
    for policy in (FairSharing(), PFabric(), Pias()):
        completion_s = schedule_flows(STAR, flows, policy) - starts
        slow[policy.name] = (completion_s[small] / (sizes[small] / GB)).mean(), completion_s.mean()
    assert slow["pfabric"][1] < slow["pias"][1]
    assert slow["pfabric"][1] < 0.9 * slow["fair"][1]
    assert slow["pfabric"][0] < 0.5 * slow["fair"][0]
    assert slow["pias"][0] < 0.5 * slow["fair"][0]


def test_training_priorities_deliver_first_what_the_next_step_needs_first() -> None:
    """Gradients appear last layer first; the first layer is needed first, and two workers send to one server."""
    layers = 8
    flows = [
        ScheduledFlow(worker, 0, 0.1 * GB, start_s=0.01 * (layers - 1 - layer), priority=layer)
        for worker in (1, 2)
        for layer in range(layers)
    ]
    first = [index for index, flow in enumerate(flows) if flow.priority == 0]
    fair = schedule_flows(STAR, flows, FairSharing())
    ordered = schedule_flows(STAR, flows, TrainingPriorities(layers))
    assert ordered.max() == pytest.approx(fair.max(), rel=1e-6)  # no bandwidth is lost
    assert ordered[first].max() - 0.07 == pytest.approx(0.2, rel=1e-6)  # the whole link from its start on
    assert fair[first].max() > 1.0


def test_hedera_estimates_the_demands_of_the_papers_example() -> None:
    """Hedera, figure 4: four hosts; the matrices of its example end in these demands."""
    pairs = [(0, 1), (0, 2), (0, 3), (1, 0), (1, 0), (1, 2), (2, 0), (2, 3), (3, 1), (3, 1)]
    sources, destinations = (np.array(side) for side in zip(*pairs, strict=True))
    demand = estimate_demands(sources, destinations)
    expected = [1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 2 / 3, 1 / 3, 1 / 3]
    np.testing.assert_allclose(demand, expected, atol=1e-6)


def test_hedera_parts_large_flows_that_hashing_has_put_on_one_link() -> None:
    graph = FatTree(8).build()
    sources = np.arange(128)
    destinations = (sources + 32) % 128  # a stride of two pods: everything crosses the core
    picked = global_first_fit(graph, sources.tolist(), destinations.tolist())
    hashed = max_min_rates(route(graph, sources, destinations), graph.link_rate_bps)
    placed = max_min_rates(route(graph, sources, destinations, picked), graph.link_rate_bps)
    # Hedera, figure 7: ECMP reaches about half of the bisection on such strides, Global First Fit far more
    assert hashed.mean() < 0.7 * 10e9
    assert placed.mean() > 0.85 * 10e9


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("k", "num_paths"), [(8, 16), (16, 64)])
def test_first_fit_reaches_every_path_of_a_fat_tree(k: int, num_paths: int, seed: int) -> None:
    """As many flows as there are paths, from a pod to the next, each at full rate: the last one has one path left."""
    graph = FatTree(k).build()
    sources = np.random.default_rng(seed).permutation(num_paths)
    picked = global_first_fit(graph, sources, sources + num_paths)
    paths = route(graph, sources, sources + num_paths, picked)
    cores = {int(graph.heads[paths[flow][2]]) for flow in range(num_paths)}
    assert len(cores) == num_paths  # each path has a core switch of its own
    assert max_min_rates(paths, graph.link_rate_bps) == pytest.approx(np.full(num_paths, 10e9))


@pytest.mark.parametrize("choose", [global_first_fit, least_loaded])
def test_flows_of_a_vl2_may_leave_by_either_switch_of_their_rack(choose: Callable[..., Ints]) -> None:
    """Every second flow is of one rack: 40 choices on, the first switch would still be the same one."""
    graph = Vl2(8, 4, gbit=10).build()
    sources = np.arange(40).reshape(2, 20).T.ravel()
    rates = max_min_rates(
        route(graph, sources, sources + 40, choose(graph, sources, sources + 40)), graph.link_rate_bps
    )
    assert rates == pytest.approx(np.full(40, 10e9))


def test_ficonns_traffic_aware_routes_spread_flows_over_detours() -> None:
    graph = FiConn(4, 2).build()
    sources, destinations = [0, 1, 2, 3] * 2, [44, 45, 46, 47] * 2
    direct = max_min_rates(route(graph, sources, destinations, [0] * 8), graph.link_rate_bps)
    picked = least_loaded(graph, sources, destinations)
    spread = max_min_rates(route(graph, sources, destinations, picked), graph.link_rate_bps)
    assert spread.sum() > 1.3 * direct.sum()


def racks(num_racks: int) -> NetworkGraph:
    """1 Gbit/s into and out of each."""
    return LeafSpine(1, 1, num_racks, gbit=1).build()


def delivered(demand_bytes: Floats, circuits: Circuits) -> HybridResult:
    """All of a demand [racks, racks]."""
    sources, destinations = np.nonzero(demand_bytes)
    pairs = list(zip(sources.tolist(), destinations.tolist(), strict=True))
    return run_hybrid(racks(len(demand_bytes)), circuits, pairs, demand_bytes[sources, destinations])


def test_circuits_carry_a_stable_demand_and_the_packet_network_alone_is_slower() -> None:
    """Both papers: a demand between pairs of racks gains nearly the circuits' rate; all-to-all gains much less."""
    paired_demand = np.zeros((8, 8))
    for rack in range(8):
        paired_demand[rack, rack ^ 1] = 0.2 * GB
    spread = (np.ones((8, 8)) - np.eye(8)) * 0.2 * GB / 7
    packet_only_s = 0.2 * GB * 8 / 1e9
    for hybrid in Hybrid:
        circuits = Circuits(hybrid=hybrid)
        paired, mixed = delivered(paired_demand, circuits), delivered(spread, circuits)
        assert paired.circuit_bytes > 0.9 * paired_demand.sum()
        assert paired.end_s.max() < packet_only_s / 5
        assert 2 * paired.end_s.max() < mixed.end_s.max() < packet_only_s


def test_a_hybrid_ends_each_flow_when_its_last_bit_is_there() -> None:
    """By hand: dark for 27 ms at 1 Gbit/s, then 10 Gbit/s; the small one ends in the dark, the other lit."""
    demand = np.zeros((4, 4))
    demand[0, 1], demand[2, 3] = 1e6, 13.375e6  # 3.375 MB of it in the dark
    found = delivered(demand, Circuits(hybrid=Hybrid.HELIOS))
    assert found.end_s == pytest.approx([8e-3, 35e-3])
    assert found.circuit_bytes == pytest.approx(10e6)
    assert found.num_epochs == 1


def test_helios_matches_one_way_demands_that_c_through_cannot() -> None:
    """A cycle of demands: one-way circuits serve all at once, two-way ones only disjoint pairs."""
    cycle = np.zeros((3, 3))
    cycle[0, 1] = cycle[1, 2] = cycle[2, 0] = GB
    assert sorted(matching(Circuits(hybrid=Hybrid.HELIOS), cycle)) == [(0, 1), (1, 2), (2, 0)]
    assert len(matching(Circuits(hybrid=Hybrid.C_THROUGH), cycle)) == 2


def test_helios_weighs_what_flows_would_reach_and_not_what_is_left_of_them() -> None:
    """By hand, in circuits: each demand is a half, so two circuits carry more than one. By bytes 0 to 1 would win.

    A circuit carries 1 Gbit per epoch. Packets at 0.1 Gbit/s carry what is dark, so the ends are a little earlier than
    the circuits' own 0.457, 0.127 and 0.127 s.
    """
    per_epoch = 0.1 * 10e9 / 8
    waiting = np.zeros((4, 4))
    waiting[0, 1], waiting[0, 2], waiting[3, 1] = 2.5 * per_epoch, per_epoch, per_epoch
    circuits = Circuits(hybrid=Hybrid.HELIOS)
    assert matching(circuits, waiting) == [(0, 2), (3, 1)]
    pairs = [(0, 1), (0, 2), (3, 1)]
    slow = LeafSpine(1, 1, 4, gbit=0.1).build()
    found = run_hybrid(slow, circuits, pairs, np.array([2.5, 1.0, 1.0]) * per_epoch)
    assert found.end_s == pytest.approx([0.456, 0.127, 0.127], abs=5e-4)
    # of two circuits per rack the second serves what the first has left out
    assert sorted(matching(replace(circuits, num_per_rack=2), waiting)) == pairs


@settings(max_examples=30)
@given(seed=st.integers(0, 10**6), num_racks=st.integers(2, 5), num_per_rack=st.integers(1, 3))
def test_no_other_matching_has_more_of_the_estimated_demands(seed: int, num_racks: int, num_per_rack: int) -> None:
    """Every matching is tried. Sizes play no part, and no rack uses more transceivers than it has."""
    rng = np.random.default_rng(seed)
    waiting = np.where(rng.random((num_racks, num_racks)) < 0.6, rng.uniform(1e6, 1e10, (num_racks, num_racks)), 0.0)
    np.fill_diagonal(waiting, 0.0)
    circuits = Circuits(hybrid=Hybrid.HELIOS, num_per_rack=num_per_rack)
    joined = matching(circuits, waiting)
    assert joined == matching(circuits, np.where(waiting > 0.0, rng.uniform(1.0, 1e12, waiting.shape), 0.0))
    sources, destinations = np.nonzero(waiting)
    assert max(np.bincount([a for a, _ in joined], minlength=1)) <= num_per_rack
    assert max(np.bincount([b for _, b in joined], minlength=1)) <= num_per_rack
    if num_per_rack == 1:
        weights = np.zeros_like(waiting)
        weights[sources, destinations] = estimate_demands(sources, destinations)
        most = max(weights[range(num_racks), order].sum() for order in permutations(range(num_racks)))
        assert sum(weights[pair] for pair in joined) == pytest.approx(most)


def test_two_circuits_between_two_racks_carry_twice_as_much() -> None:
    demand = np.zeros((2, 2))
    demand[0, 1] = 10 * GB
    one, two = (delivered(demand, Circuits(hybrid=Hybrid.HELIOS, num_per_rack=count)).end_s.max() for count in (1, 2))
    assert two == pytest.approx(one / 2, rel=0.05)


def test_slower_setting_makes_a_hybrid_slower() -> None:
    demand = (np.ones((6, 6)) - np.eye(6)) * 0.5 * GB
    times = [delivered(demand, Circuits(hybrid=Hybrid.HELIOS, setting_ms=ms)).end_s.max() for ms in (1.0, 27.0, 100.0)]
    assert times == sorted(times)
    assert times[0] < times[-1]


def test_schedulers_are_read_by_name_with_their_parameters() -> None:
    assert parse_scheduler("pias(thresholds=(1e4, 1e6))") == Pias((1e4, 1e6))
    assert parse_scheduler("training(num_priorities=16)") == TrainingPriorities(16)
    assert [parse_scheduler(name).name for name in ("fair", "pfabric", "varys")] == ["fair", "pfabric", "varys"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pias((2e4, 1e4)), "do not rise"),
        (lambda: TrainingPriorities(0), "order nothing"),
        (lambda: schedule_flows(STAR, [ScheduledFlow(0, 1, 0.0)], FairSharing()), "leave it out"),
        (lambda: parse_scheduler("sjf"), "use one of fair, fifo, pfabric"),
        (lambda: parse_scheduler("pfabric(levels=2)"), "has no parameter 'levels'; it has none"),
        (lambda: parse_scheduler("training"), "lacks a parameter"),
        (
            lambda: parse_scheduler("pias(thresholds=1e4)"),
            r"thresholds is a tuple \(a, b, …\), each a number, not 10000",
        ),
        (lambda: check_circuits(Circuits(hybrid=Hybrid.HELIOS, gbit=0), [], []), "a rate above 0"),
        (lambda: check_circuits(Circuits(hybrid=Hybrid.HELIOS, setting_ms=200), [], []), "use a longer epoch"),
        (lambda: check_circuits(Circuits(hybrid=Hybrid.C_THROUGH, num_per_rack=2), [], []), "is not made; use 1"),
        (lambda: check_circuits(Circuits(hybrid=Hybrid.HELIOS), [(0, 1)] * 2, [0.0] * 2), "make them one flow"),
        (lambda: check_circuits(Circuits(hybrid=Hybrid.HELIOS), [(0, 1)], [0.5]), "without jitter"),
    ],
)
def test_bad_schedules_are_refused_with_a_remedy(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(NetworkError, match=message):
        make()
