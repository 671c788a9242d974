"""The suite networks: every cell can run, families have room, claims pick their cells."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.claims import Outcome
from analysis.naming import Method
from analysis.steps.rows import Setting, StepRow
from analysis.study import Evidence
from fabric.api import HostChoice, NetworkSpec
from fabric.simulated.placed import place_network, shortest_choices
from fabric.simulated.routing import route
from fabric.simulated.topologies import parse_topology
from results.record import Phases
from suites.api import Options
from suites.networks import study
from suites.networks.grid import grid
from suites.networks.places import FAMILIES, SIZES


def test_cells_have_names_of_their_own_and_repeats_only_where_seeds_matter() -> None:
    trials = grid(Options())
    assert len({trial.id for trial in trials}) == len(trials)
    assert {trial.repeat for trial in trials if trial.jobs} == {0}
    # what a seed draws has a spread
    assert {trial.repeat for trial in trials if trial.traffic is not None} == set(range(6))
    assert all(trial.seed == 1 + trial.repeat for trial in trials if trial.traffic is not None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_room_for_its_ranks_and_little_more(family: str) -> None:
    for text, num_ranks in zip(FAMILIES[family], SIZES, strict=True):
        hosts = parse_topology(text).facts().num_hosts
        assert num_ranks <= hosts <= max(1.3 * num_ranks, 80)  # VL2's racks have 20 servers


@pytest.mark.parametrize(("n", "k"), [(4, 1), (2, 4)])
def test_servers_that_forward_send_to_neighbours_directly(n: int, k: int) -> None:
    placed = place_network(NetworkSpec(topology=f"bcube(n={n}, k={k})", placement=HostChoice.PACKED), n ** (k + 1))
    hosts = list(range(0, n ** (k + 1), n))
    after = [host + 1 for host in hosts]
    choices = shortest_choices(placed.graph, hosts, after)
    assert set(np.diff(route(placed.graph, hosts, after, choices).offsets)) == {2}  # under one switch


def test_claims_say_nothing_where_the_suite_was_not_run() -> None:
    assert list(study.claims(Evidence(suites=frozenset()))) == []


def test_claims_without_their_cells_are_not_measured() -> None:
    judged = list(study.claims(Evidence(suites=frozenset({study.NAME}))))
    assert judged
    assert {row.outcome for row in judged} == {Outcome.NOT_MEASURED}


def step(network: str, predicted_s: float) -> StepRow:
    place = Setting(
        suite="networks", workload="vgg16-replay", batch_size=32, num_workers=32, gbit=25.0, network=network
    )
    method = Method(())
    return StepRow(
        place=place, method="", strategy=method, name="", system="ours", evidence="simulated",
        phases=Phases(), predicted_s=predicted_s, ids=(network,),
    )  # fmt: skip


def test_a_claim_judges_the_step_over_its_reference() -> None:
    packed = study._where("vl2", study.MIDDLE)
    spread = study._where("vl2", study.MIDDLE, placement=HostChoice.SPREAD)
    steps = {("vgg16-replay", 32, network): step(network, at) for network, at in ((packed, 0.1), (spread, 0.2))}
    (measured,) = study._placed(steps, "vl2")
    assert measured.of == ((spread,), (packed,))
    assert measured.cell == "vl2, spread"
    assert measured.value.median == pytest.approx(2.0)


def test_a_draw_of_hosts_is_named_where_it_is_not_the_first() -> None:
    network = NetworkSpec(topology="torus(sides=(4, 4))", placement=HostChoice.RANDOM)
    texts = [
        replace(network, seed=seed, own_hosts=own).placement_text for seed, own in ((1, False), (2, False), (2, True))
    ]
    assert texts == ["random", "random (draw 2)", "random (draw 2), own hosts"]
    assert replace(network, seed=2, placement=HostChoice.PACKED).placement_text == "packed"


def test_failures_leave_every_host_a_cable() -> None:
    spec = NetworkSpec(topology="dcell(n=11, k=1)", num_failed=16)
    for seed in range(5):
        graph = place_network(replace(spec, seed=seed), 2).graph
        assert (~graph.up).sum() == 16
        up = graph.ends[graph.up]
        assert set(range(graph.num_hosts)) <= set(up.reshape(-1).tolist())
