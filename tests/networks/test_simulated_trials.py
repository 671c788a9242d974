"""Trials on simulated networks: the flow engine's times, the scheduler's bounds, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from baselines.api import How
from baselines.strategy import parse_strategy
from crossover import Sharing
from fabric.api import FabricError, FabricKind, FabricSpec, HostChoice, NetworkSpec, Paths
from fabric.collectives import Collective
from fabric.simulated.flow import simulate_flows
from fabric.simulated.graph import NetworkError
from fabric.simulated.placed import is_server_centric, place_network, shortest_choices
from fabric.simulated.topologies import LeafSpine
from fabric.simulated.traffic import TrafficJob, collective_rounds
from harness.bench import Bench
from harness.checks.trial import check
from harness.lab.messages import Ending
from harness.predict.costs import LinkCosts, given_costs
from harness.predict.demand import Demands
from harness.predict.layers import layers_of_workload, plain_layers
from harness.simulated.medium import alone_s, network_costs
from harness.simulated.rounds import affine_rounds
from harness.simulated.trial import simulate
from harness.trial import Job, Link, Trial, TrialError
from models.workload import Device, WorkloadSpec
from results.record import Status

STAR = NetworkSpec(topology="leaf-spine(leaves=1, spines=1, hosts_per_leaf=8, gbit=10, delay_us=0.0)")
RESNET = WorkloadSpec(network="resnet50", device=Device.REPLAY, batch_size=16)
ALL_AFTER = "single-bucket"


def fabric(network: NetworkSpec = STAR, num_hosts: int = 4, alpha_s: float = 0.0) -> FabricSpec:
    return FabricSpec(kind=FabricKind.SIMULATED, num_hosts=num_hosts, rate_bps=None, network=network, alpha_s=alpha_s)


def trial(
    sharing: Sharing | None = None, *, network: NetworkSpec = STAR, num_jobs: int = 2, **changed: object
) -> Trial:
    jobs = tuple(Job(name=name, workload=RESNET, strategy=ALL_AFTER) for name in "abc"[:num_jobs])
    made = Trial(suite="t", cell="g/w/l", jobs=jobs, fabric=fabric(network), sharing=sharing, num_steps=4, num_warmup=2)
    return replace(made, **changed)  # type: ignore[arg-type]


def step_s(asked: Trial, job: int = 0) -> float:
    answer, _ = simulate(asked, layers_of_workload)
    return answer.ranks[job].step_times_s[-2]  # the last one ends without waiting for a turn


@pytest.mark.parametrize("topology", ["fat-tree(k=4", "torus(sides=(4, 4)", "bcube(n=4, k=1"])
@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_TO_ALL, Collective.BROADCAST])
def test_a_collective_alone_takes_what_the_flow_engine_says(topology: str, collective: Collective) -> None:
    placed = place_network(NetworkSpec(topology=f"{topology}, delay_us=0.0)", placement=HostChoice.SPREAD), 8)
    rounds = collective_rounds(collective, 8, 4e6)
    hosts = np.array(placed.jobs[0].hosts)
    choices = [np.arange(len(own.sources)) for own in rounds]  # hashed in each round anew, as here
    if is_server_centric(placed.graph):
        choices = [shortest_choices(placed.graph, hosts[own.sources], hosts[own.destinations]) for own in rounds]
    flows = simulate_flows(placed.graph, [TrafficJob(tuple(hosts), rounds)], choices=[np.concatenate(choices)])
    assert sum(alone_s(placed, 0, collective, 4e6)) == pytest.approx(flows.finish_s[0], rel=1e-9)


@pytest.mark.parametrize("core_gbit", [10.0, 2.5])
def test_jobs_that_compete_agree_with_the_flow_engine(core_gbit: float) -> None:
    topology = f"fat-tree(k=4, gbit=10, core_gbit={core_gbit:g}, delay_us=0.0)"
    network = NetworkSpec(topology=topology, placement=HostChoice.SPREAD, own_hosts=True)
    placed = place_network(network, 8, 2)
    rounds = collective_rounds(Collective.ALL_REDUCE, 8, 8e6)
    flows = simulate_flows(placed.graph, [TrafficJob(own.hosts, rounds) for own in placed.jobs])
    jobs = tuple(
        Job(name=name, workload=RESNET, strategy=ALL_AFTER, optimizer="sgd", role="method")  # type: ignore[arg-type]
        for name in "ab"
    )
    layers = plain_layers([0.0], [1e-9], [2_000_000])
    asked = Trial(
        suite="t", cell="c", jobs=jobs, fabric=fabric(network, 8), sharing=Sharing.NAIVE, num_steps=2, num_warmup=1
    )
    answer, _ = simulate(asked, lambda _: layers)
    # a bundle progresses at the average pace of its rounds, the flow engine's flows at their own between barriers
    for rank, finish_s in zip(answer.ranks, flows.finish_s, strict=True):
        assert rank.step_times_s[-1] == pytest.approx(finish_s, rel=0.02)


def test_a_star_costs_what_the_ring_formula_and_the_paced_link_say() -> None:
    placed = place_network(STAR, 4)
    ours = network_costs(placed, 0, alpha_s=5e-5).of("AllReduce")
    theory = given_costs(4, alpha_s=5e-5, beta_s_per_byte=8 / 10e9).of("AllReduce")
    assert ours.alpha_s == pytest.approx(theory.alpha_s, rel=1e-9)
    assert ours.beta_s_per_byte == pytest.approx(theory.beta_s_per_byte, rel=1e-9)


def test_turns_reach_the_bound_and_holding_them_gains_nothing() -> None:
    _, alone = simulate(trial(Sharing.NAIVE), layers_of_workload)
    compute_s, communication_s, solo_s = alone[0].compute_s, alone[0].communication_s, alone[0].solo_s
    assert solo_s == pytest.approx(compute_s + communication_s)  # no overlap inside a step
    bound_s = max(2 * compute_s, 2 * communication_s, solo_s)
    assert step_s(trial(Sharing.CROSSOVER)) == pytest.approx(bound_s, rel=1e-6)
    assert step_s(trial(Sharing.HOLD)) == pytest.approx(2 * solo_s, rel=1e-6)


def test_jobs_one_after_the_other_take_what_they_take_alone() -> None:
    answer, alone = simulate(trial(Sharing.EXCLUSIVE), layers_of_workload)
    for rank, own in zip(answer.ranks, alone, strict=True):
        assert rank.step_times_s[-1] == pytest.approx(own.solo_s, rel=1e-9)
    assert answer.ranks[1].start_s == pytest.approx(answer.ranks[0].end_s)


def two_racks(choice: HostChoice) -> NetworkSpec:
    topology = "leaf-spine(leaves=2, spines=1, hosts_per_leaf=8, gbit=10, spine_gbit=10)"
    return NetworkSpec(topology=topology, placement=choice, own_hosts=True)


def test_jobs_on_hosts_of_their_own_meet_on_the_uplink_only_if_they_are_spread() -> None:
    packed, spread = (trial(Sharing.NAIVE, network=two_racks(choice)) for choice in HostChoice if choice != "random")
    _, alone = simulate(packed, layers_of_workload)
    assert step_s(packed) == pytest.approx(alone[0].solo_s, rel=1e-6)
    assert step_s(spread) > 1.05 * alone[0].solo_s


def test_time_shifts_part_jobs_that_meet_on_a_link() -> None:
    naive = trial(Sharing.NAIVE, network=two_racks(HostChoice.SPREAD), num_steps=12)
    shifted, turns = (replace(naive, sharing=own) for own in (Sharing.CASSINI, Sharing.CROSSOVER))
    assert step_s(shifted) < 0.97 * step_s(naive)
    assert step_s(turns) < 0.97 * step_s(naive)


def test_link_turns_are_what_parts_them_there() -> None:
    turns = trial(Sharing.CROSSOVER, network=two_racks(HostChoice.SPREAD), num_steps=12)
    assert step_s(turns) < step_s(replace(turns, link=Link.FAIR))


@pytest.mark.parametrize(
    ("strategy", "how"),
    [
        ("unfused", How.SUM),
        ("unfused+ring", How.SUM),
        ("unfused+hierarchical(ranks_per_host=2)", How.SUM),
        ("unfused+tree", How.SUM),
        ("unfused+parameter-server", How.SUM),
        ("unfused+all-gather", How.CONCAT),
    ],
)
def test_an_exchange_sends_rank_0s_bytes_over_the_network(strategy: str, how: How) -> None:
    costs: LinkCosts = given_costs(8, alpha_s=0.0, beta_s_per_byte=1e-9)
    made = parse_strategy(strategy)
    num_bytes = 64_000.0
    rounds = [own.of(num_bytes, 1.0) for own in affine_rounds(made, costs, how, equal_sizes=True)]
    sent = sum(own.repeats * own.num_bytes[own.sources == 0].sum() for own in rounds if own is not None)
    fixed, per_byte = Demands(made, costs)._exchange(how, True)
    assert sent == pytest.approx(fixed.sent_bytes + num_bytes * per_byte.sent_bytes, rel=1e-6)


@pytest.mark.parametrize(
    ("strategy", "expected_s"),
    [
        ("unfused", 2 * 7 / 8),
        ("unfused+ring", 2 * 7 / 8),
        ("unfused+tree", 6.0),  # three levels up, three down
        ("unfused+hierarchical(ranks_per_host=2)", 1 + 2 * 3 / 4 + 1),  # to the leader, among four of them, and back
        ("unfused+parameter-server", 2 * 7 / 8),  # every rank serves an eighth
    ],
)
def test_an_exchange_on_a_star_takes_its_closed_form(strategy: str, expected_s: float) -> None:
    costs = given_costs(8, alpha_s=0.0, beta_s_per_byte=1e-9)
    found = affine_rounds(parse_strategy(strategy), costs, How.SUM, equal_sizes=True)
    rounds = tuple(own for own in (each.of(1e9, 1.0) for each in found) if own is not None)
    star = LeafSpine(1, 1, 8, gbit=8, delay_us=0).build()  # 1 GB/s per host through one switch
    assert simulate_flows(star, [TrafficJob(tuple(range(8)), rounds)]).finish_s[0] == pytest.approx(expected_s)


def test_a_ring_of_transfers_is_one_round_with_repeats() -> None:
    costs = given_costs(16, alpha_s=0.0, beta_s_per_byte=1e-9)
    (own,) = affine_rounds(parse_strategy("unfused+ring"), costs, How.SUM, equal_sizes=True)
    assert own.repeats == 30


def test_replayed_tensors_count_in_full_on_the_network() -> None:
    small = replace(RESNET, size_scale=50)
    jobs = (Job(name="a", workload=small, strategy=ALL_AFTER),)
    # shapes are cut to whole numbers, so a scaled model is not exactly as large
    assert step_s(trial(num_jobs=1, jobs=jobs)) == pytest.approx(step_s(trial(num_jobs=1)), rel=0.02)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (NetworkSpec(topology="fat-tree(k=5)"), "use an even k"),
        (NetworkSpec(topology="hypercube(k=5)"), "is no topology; use one of"),
        (NetworkSpec(topology="fat-tree(k=2)"), "use a larger network"),
        (replace(STAR, own_hosts=True, topology="fat-tree(k=2)"), "do not fit on the 2 hosts"),
        (replace(STAR, transport="quic"), "is no transport; use one of fluid"),
        (replace(STAR, num_failed=99), "99 cables cannot fail"),
        (replace(STAR, transport="roce", paths=Paths.FIRST_FIT), "sends a pair's flows one way.*use ecmp"),
        (NetworkSpec(topology="leaf-spine(leaves=2, spines=1, hosts_per_leaf=2)", num_failed=2), "no path is left"),
    ],
)
def test_a_network_that_cannot_be_is_refused_before_anything_starts(network: NetworkSpec, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        check(trial(Sharing.NAIVE, network=network))


def test_chosen_paths_give_ranks_anywhere_the_step_of_ranks_in_order() -> None:
    """Half of a network with full bisection: hashed flows meet on some link, Hedera's first fit parts them."""
    network = NetworkSpec(topology="fat-tree(k=4, gbit=1)", placement=HostChoice.RANDOM, seed=3)
    told = {
        paths: step_s(trial(num_jobs=1, fabric=fabric(replace(network, paths=paths), num_hosts=8))) for paths in Paths
    }
    packed = step_s(trial(num_jobs=1, fabric=fabric(NetworkSpec(topology=network.topology), num_hosts=8)))
    assert told[Paths.ECMP] > 1.2 * packed
    assert told[Paths.FIRST_FIT] == pytest.approx(packed, rel=0.01)


def test_a_fabric_names_a_network_if_and_only_if_it_is_simulated() -> None:
    with pytest.raises(FabricError, match="needs a network"):
        FabricSpec(kind=FabricKind.SIMULATED, rate_bps=None)
    with pytest.raises(FabricError, match="use the simulated one"):
        FabricSpec(kind=FabricKind.PACED, network=STAR)
    with pytest.raises(FabricError, match="has its own rates"):
        FabricSpec(kind=FabricKind.SIMULATED, rate_bps=1e9, network=STAR)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"jobs": (Job(name="a", workload=replace(RESNET, jitter=0.1)),)}, "ranks differ at random"),
        ({"jobs": (Job(name="a", workload=RESNET, system="torch-ddp"),)}, "decides by itself"),
        ({"jobs": (Job(name="a", workload=RESNET, strategy="unfused+local-steps(n=2)"),)}, "local-steps"),
    ],
)
def test_what_the_clock_cannot_run_is_skipped_with_the_reason(changed: dict[str, object], reason: str) -> None:
    answer, _ = simulate(trial(num_jobs=1, **changed), layers_of_workload)
    assert answer.ending is Ending.UNAVAILABLE
    assert reason in answer.reason


def test_a_record_says_network_transport_and_placement() -> None:
    network = NetworkSpec(topology="fat-tree(k=4, gbit=25)", placement=HostChoice.SPREAD, num_failed=1)
    with Bench() as bench:
        record = bench.run(trial(Sharing.CROSSOVER, network=network))
    assert record.status is Status.OK
    facts = record.fabric
    assert (facts.kind, facts.label, facts.rate_bps) == ("simulated", "simulated", 25e9)
    assert (facts.network, facts.transport, facts.placement) == (
        "fat-tree(k=4, gbit=25) less 1 cables",
        "fluid",
        "spread",
    )
    assert record.jobs[0].clock == "virtual"
    assert record.prediction is not None
    assert record.sharing_facts is not None


def test_unequal_workers_are_not_simulated_here() -> None:
    from suites.consistency.grid import cluster_of

    with pytest.raises(TrialError, match="train in lockstep"):
        check(trial(num_jobs=1, cluster=cluster_of("equal", 4)))
