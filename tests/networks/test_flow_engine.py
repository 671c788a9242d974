"""The flow engine against closed forms and against a plain max-min simulation written another way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric.collectives import Collective
from fabric.simulated.flow import simulate_flows
from fabric.simulated.graph import NetworkError, NetworkGraph
from fabric.simulated.routing import route
from fabric.simulated.topologies import BCube, DCell, FatTree, FiConn, LeafSpine, MdCube, Topology, Torus, Vl2
from fabric.simulated.traffic import (
    FlowRound,
    HostChoice,
    TrafficJob,
    collective_rounds,
    place_jobs,
)

STAR = LeafSpine(1, 1, 8, gbit=8, delay_us=0)  # 1 GB/s per host through one switch
GIGABYTE = 1e9


def ring_all_reduce(world: int, num_bytes: float) -> tuple[FlowRound, ...]:
    return collective_rounds(Collective.ALL_REDUCE, world, num_bytes)


def all_to_all(world: int, num_bytes: float) -> tuple[FlowRound, ...]:
    """So many bytes from every rank to every other."""
    return collective_rounds(Collective.ALL_TO_ALL, world, (world - 1) * num_bytes)


def plain_max_min(paths: list[np.ndarray], capacity: np.ndarray) -> np.ndarray:
    """Textbook progressive filling, one bottleneck after the other."""
    rates, room = np.full(len(paths), np.nan), capacity.astype(float).copy()
    while np.isnan(rates).any():
        open_flows = [flow for flow in range(len(paths)) if np.isnan(rates[flow])]
        load = np.zeros(len(capacity))
        for flow in open_flows:
            load[paths[flow]] += 1
        share = np.where(load > 0, room / np.maximum(load, 1), np.inf)
        tight = int(share.argmin())
        for flow in open_flows:
            if tight in paths[flow]:
                rates[flow] = share[tight]
                room[paths[flow]] -= share[tight]
    return rates


def plain_end_s(graph: NetworkGraph, sources: np.ndarray, destinations: np.ndarray, num_bytes: np.ndarray) -> float:
    """When flows that start together have all ended: rates of all computed anew at every end."""
    found = route(graph, sources, destinations)
    left, now = num_bytes * 8.0, 0.0
    flows = list(range(len(sources)))
    while flows:
        rates = plain_max_min([found[flow] for flow in flows], graph.link_rate_bps)
        step = (left[flows] / rates).min()
        left[flows] -= rates * step
        now += step
        flows = [flow for flow in flows if left[flow] > 1e-6 * num_bytes[flow]]
    return now


def duration_s(topology: Topology, num_ranks: int, rounds: tuple[FlowRound, ...]) -> float:
    return simulate_flows(topology.build(), [TrafficJob(tuple(range(num_ranks)), rounds)]).finish_s[0]


@pytest.mark.parametrize(
    ("rounds", "expected_s"),
    [
        (ring_all_reduce(8, GIGABYTE), 2 * 7 / 8),
        (collective_rounds(Collective.BROADCAST, 8, GIGABYTE), 3.0),
        (collective_rounds(Collective.GATHER, 8, GIGABYTE), 7.0),
        (all_to_all(8, GIGABYTE), 7.0),
    ],
)
def test_collectives_on_a_star_take_their_closed_forms(rounds: tuple[FlowRound, ...], expected_s: float) -> None:
    assert duration_s(STAR, 8, rounds) == pytest.approx(expected_s, rel=1e-9)


@pytest.mark.parametrize(
    "topology",
    [
        FatTree(16, 8),
        LeafSpine(32, 32, 32, 8),
        Vl2(16, 16, 8),
        BCube(4, 4, 8),
        DCell(6, 2, 8),
        FiConn(12, 2, 8),
        MdCube(8, 1, (4, 4), 8),
        Torus((32, 32), 8),
    ],
    ids=lambda topology: type(topology).__name__,
)
def test_a_thousand_hosts_ring_takes_no_less_than_its_bound(topology: Topology) -> None:
    taken_s = duration_s(topology, 1024, ring_all_reduce(1024, GIGABYTE))
    assert taken_s >= 2 * 1023 / 1024 * (1 - 1e-9)
    # a ring crosses most cables once; 40 is far above what any of these networks loses by shared ones
    assert taken_s < 40


@settings(max_examples=30)
@given(seed=st.integers(0, 2**20), num_flows=st.integers(1, 40))
def test_the_incremental_engine_ends_when_the_plain_one_does(seed: int, num_flows: int) -> None:
    rng = np.random.default_rng(seed)
    graph = FatTree(4, 10, core_gbit=float(rng.choice([10, 3])), delay_us=0).build()
    sources = rng.integers(0, 16, num_flows)
    destinations = (sources + rng.integers(1, 16, num_flows)) % 16
    num_bytes = rng.choice([1e6, 3e6, 1e7], num_flows) * rng.uniform(0.5, 1.5, num_flows)
    job = TrafficJob(tuple(range(16)), (FlowRound(sources, destinations, num_bytes),))
    # the plain one drops flows with a millionth of their bytes left
    assert simulate_flows(graph, [job]).finish_s[0] == pytest.approx(
        plain_end_s(graph, sources, destinations, num_bytes), rel=1e-5
    )


def test_two_jobs_on_the_same_links_take_twice_as_long_and_apart_they_do_not() -> None:
    graph = STAR.build()
    ring = ring_all_reduce(4, GIGABYTE)
    together = simulate_flows(graph, [TrafficJob((0, 1, 2, 3), ring), TrafficJob((0, 1, 2, 3), ring)])
    apart = simulate_flows(graph, [TrafficJob((0, 1, 2, 3), ring), TrafficJob((4, 5, 6, 7), ring)])
    assert together.finish_s == pytest.approx([3.0, 3.0])
    assert apart.finish_s == pytest.approx([1.5, 1.5])


def test_a_job_that_starts_later_slows_the_first_only_from_then_on() -> None:
    graph = STAR.build()
    flow = (FlowRound(np.array([0]), np.array([1]), np.array([GIGABYTE])),)
    ends = simulate_flows(graph, [TrafficJob((0, 1), flow), TrafficJob((0, 2), flow, start_s=0.5)]).finish_s
    assert ends == pytest.approx([1.5, 2.0])


def test_repeats_cost_delay_and_round_time_each() -> None:
    graph = LeafSpine(1, 1, 4, gbit=8, delay_us=5).build()
    job = TrafficJob((0, 1, 2, 3), ring_all_reduce(4, 4e6), round_s=20e-6)
    result = simulate_flows(graph, [job])
    assert len(result.round_ends_s[0]) == 6
    assert result.finish_s[0] == pytest.approx(6 * (1e-3 + 10e-6 + 20e-6))


def test_competing_repeats_equal_repeats_alone_on_their_share() -> None:
    """Event by event and by multiplication must agree: the second job only touches the first at its very end."""
    graph = STAR.build()
    late = TrafficJob((0, 1), (FlowRound(np.array([0]), np.array([1]), np.array([1e6])),), start_s=9.0)
    ring = TrafficJob(tuple(range(8)), ring_all_reduce(8, GIGABYTE))
    alone, beside = simulate_flows(graph, [ring]), simulate_flows(graph, [ring, late])
    np.testing.assert_allclose(beside.round_ends_s[0], alone.round_ends_s[0], rtol=1e-9)


def test_links_carry_what_was_sent_over_them() -> None:
    graph = STAR.build()
    result = simulate_flows(graph, [TrafficJob(tuple(range(8)), ring_all_reduce(8, GIGABYTE))])
    host_cables = result.link_bytes.reshape(-1, 2)[:8]
    np.testing.assert_allclose(host_cables, 2 * 7 / 8 * GIGABYTE)


def test_packed_ranks_cross_the_core_less_than_spread_ones() -> None:
    graph = FatTree(8, 10, core_gbit=2.5).build()
    ring = ring_all_reduce(16, GIGABYTE)
    times = {}
    for choice in HostChoice:
        hosts = place_jobs(graph, [16] * 8, choice, seed=3)
        assert len({host for job in hosts for host in job}) == 128
        times[choice] = max(simulate_flows(graph, [TrafficJob(places, ring) for places in hosts]).finish_s)
    assert times[HostChoice.PACKED] * 1.5 < times[HostChoice.SPREAD]
    assert times[HostChoice.PACKED] * 1.5 < times[HostChoice.RANDOM]


def test_a_failed_core_switch_slows_an_all_to_all() -> None:
    graph = FatTree(4).build()
    job = TrafficJob(tuple(range(16)), all_to_all(16, 1e6))
    whole = simulate_flows(graph, [job]).finish_s[0]
    assert simulate_flows(graph.without(switches=[graph.num_nodes - 1]), [job]).finish_s[0] > whole


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: place_jobs(STAR.build(), [6, 6], HostChoice.PACKED), r"do not fit on the 8 hosts.*use a larger"),
        (lambda: duration_s(STAR, 4, ring_all_reduce(8, 1e6)), "has 4 hosts but sends from rank 7"),
        (lambda: duration_s(STAR, 8, ring_all_reduce(8, 0.0)), "flow of no bytes"),
        (lambda: duration_s(STAR, 16, ring_all_reduce(16, 1e6)), "outside hosts 0 to 7"),
    ],
)
def test_bad_jobs_are_refused_with_a_remedy(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(NetworkError, match=message):
        make()
