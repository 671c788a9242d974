"""Trials of fluids without jobs: schedulers, paths and circuits, their records, figures and claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from analysis.claims import Outcome
from analysis.flows import rows as measured
from analysis.flows.figures import flow_drawings
from analysis.flows.rows import flow_rows
from fabric.api import NetworkSpec, Paths
from fabric.simulated.flow_traffic import Circuits, FlowGroup, FluidTraffic, Hybrid, MixedLoad
from fabric.simulated.graph import NetworkError
from harness.checks.trial import check
from harness.simulated.flows import run_traffic, traffic_record
from harness.trial import Trial
from models.layer_profile import load_profile
from results.codec import from_jsonable, to_jsonable
from results.record import Environment, Record
from results.traffic import TrafficFacts
from scripts import recompute_claims as again
from suites.networks.schedule_claims import schedule_claims
from suites.networks.schedules import FLOAT32_BYTES, mixed_loads, pushes, schedule_cell, schedule_cells

STAR = "leaf-spine(leaves=1, spines=1, hosts_per_leaf=4, gbit=8)"  # 1 GB/s per host
GB = 1e9


def flows(name: str, sources: tuple[int, ...], destinations: tuple[int, ...], gigabytes: float) -> FlowGroup:
    return FlowGroup(
        name=name, sources=sources, destinations=destinations, num_bytes=gigabytes * GB, jitter_s=0.0, use_s=0.5
    )


def asked(scheduler: str = "fair", *, topology: str = STAR, circuits: Circuits | None = None) -> Trial:
    """A large group that comes first and a small one, into one host."""
    groups = (flows("large", (1,), (0,), 2.0), flows("small", (2,), (0,), 1.0))
    return schedule_cell(
        "schedule-test", scheduler, topology, FluidTraffic(groups=groups, scheduler=scheduler, circuits=circuits)
    )


def ends(facts: TrafficFacts) -> list[float | None]:
    return [end for group in facts.groups for end in group.end_s]


@pytest.mark.parametrize(
    ("scheduler", "expected_s"),
    [
        ("fair", [3.0, 2.0]),
        ("pfabric", [3.0, 1.0]),
        ("varys", [3.0, 1.0]),
        ("training(num_priorities=2)", [2.0, 3.0]),
    ],
)
def test_groups_are_served_as_the_scheduler_says(scheduler: str, expected_s: list[float]) -> None:
    """A group is a coflow, and its place its priority."""
    facts = run_traffic(asked(scheduler))
    assert ends(facts) == pytest.approx(expected_s)
    assert [group.alone_s for group in facts.groups] == [(2.0,), (1.0,)]
    assert not facts.is_drawn


def test_figures_of_a_run_are_those_of_its_groups() -> None:
    facts = run_traffic(asked("pfabric"))
    assert measured.mean_slowdown(facts) == pytest.approx((1.5 + 1.0) / 2)
    assert measured.group_s(facts) == pytest.approx((3.0 + 1.0) / 2)
    # the small group is there long before the large one, and is used after it
    assert measured.used_s(facts) == measured.takes_s(facts) == pytest.approx(3.0 + 0.5 + 0.5)
    # where the large one ends first, its use hides behind the other's flow
    assert measured.used_s(run_traffic(asked("training(num_priorities=2)"))) == pytest.approx(3.0 + 0.5)


def test_a_record_of_fluids_survives_being_written() -> None:
    trial = asked("pias(thresholds=(1e6, 1e9))", circuits=None)
    record = traffic_record(trial, Environment())
    assert from_jsonable(Record, to_jsonable(record)) == record
    assert from_jsonable(Trial, record.trial) == trial


def test_a_mixed_load_is_drawn_and_parted_into_short_and_long_flows() -> None:
    traffic = FluidTraffic(mixed=MixedLoad(num_flows=60, load=0.5))
    trial = schedule_cell("schedule-test", "fair", "fat-tree(k=4, gbit=40)", traffic)
    facts = run_traffic(trial)
    short, long = facts.groups
    assert (short.name, long.name) == ("short", "long")
    assert len(short.num_bytes) + len(long.num_bytes) == 60
    assert max(short.num_bytes) <= 1e5 < min(long.num_bytes)
    assert facts.is_drawn
    assert facts != run_traffic(replace(trial, seed=2))


def test_circuits_carry_what_packets_would_take_longer_for() -> None:
    """10 Gbit/s beside 8: 1 GB each way takes 1 s by packets; dark for 27 of 127 ms."""
    groups = (flows("both", (0, 1), (1, 0), 1.0),)
    circuits = Circuits(hybrid=Hybrid.C_THROUGH, gbit=80)
    alone = run_traffic(schedule_cell("circuits-test", "packets", STAR, FluidTraffic(groups=groups)))
    lit = run_traffic(schedule_cell("circuits-test", "c", STAR, FluidTraffic(groups=groups, circuits=circuits)))
    assert ends(alone) == pytest.approx([1.0, 1.0])
    assert ends(lit) == pytest.approx([0.027 + 0.973 / 10] * 2)
    assert lit.circuit_bytes == pytest.approx(2 * 0.973 * GB)
    assert alone.circuit_bytes is None


def test_first_fit_parts_flows_that_hashing_puts_on_one_link() -> None:
    group = flows("stride", tuple(range(16)), tuple((host + 4) % 16 for host in range(16)), 0.1)
    taken = {
        paths: run_traffic(
            schedule_cell("p", paths, "fat-tree(k=4, gbit=8)", FluidTraffic(groups=(group,)), choice=paths)
        ).now_s
        for paths in Paths
    }
    assert taken[Paths.LEAST_LOADED] <= taken[Paths.FIRST_FIT] < taken[Paths.ECMP]


def test_pushes_hold_all_of_a_network_in_the_order_of_backward() -> None:
    profile = load_profile("vgg16-v100")
    groups = tuple(pushes(profile))
    assert sum(group.num_bytes * 4 for group in groups) == FLOAT32_BYTES * profile.num_parameters
    starts = [group.start_s for group in groups]
    assert starts == sorted(starts, reverse=True)
    assert starts[0] == pytest.approx(profile.backward_s)
    assert math.fsum(group.use_s for group in groups) == pytest.approx(profile.forward_s)


LIT = Circuits(hybrid=Hybrid.HELIOS)
LATE = FlowGroup(name="late", sources=(1,), destinations=(0,), num_bytes=GB)  # by its jitter


def with_traffic(trial: Trial, **changes: object) -> Trial:
    assert isinstance(trial.traffic, FluidTraffic)
    return replace(trial, traffic=replace(trial.traffic, **changes))


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        (asked("sjf"), "use one of fair, fifo, pfabric"),
        (asked("varys", circuits=LIT), "use 'fair'"),
        (with_traffic(asked(), groups=()), "give one of them"),
        (with_traffic(asked(circuits=LIT), groups=(flows("twice", (1, 1), (0, 0), 1.0),)), "make them one flow"),
        (
            with_traffic(
                asked(circuits=LIT), groups=(FlowGroup(name="a", sources=(1,), destinations=(0,), num_bytes=1),)
            ),
            "without jitter",
        ),
        (asked(circuits=replace(LIT, epoch_ms=20)), "use a longer epoch"),
        (
            replace(asked(), fabric=replace(asked().fabric, network=NetworkSpec(topology=STAR, transport="dctcp"))),
            "use 'fluid'",
        ),
        (
            replace(
                asked(circuits=LIT),
                fabric=replace(asked().fabric, network=NetworkSpec(topology=STAR, paths=Paths.FIRST_FIT)),
            ),
            "paths are hashed, not first-fit; use ecmp",
        ),
    ],
)
def test_bad_fluids_name_the_value_and_the_remedy(trial: Trial, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        check(trial)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """The suite's exact cells, and two seeds of a small mixed load in place of the large one."""
    small = MixedLoad(num_flows=60, load=0.7)
    drawn = [replace(with_traffic(cell, mixed=small), repeat=r, seed=r) for cell in mixed_loads() for r in (1, 2)]
    for cell in (*schedule_cells(), *drawn):
        check(cell)
    return [traffic_record(cell, Environment()) for cell in (*schedule_cells(), *drawn)]


def test_claims_are_judged_from_records_and_the_script_finds_the_same_figures(records: list[Record]) -> None:
    rows = {(row.group, row.label): row for row in flow_rows(_by_cell(records))}
    judged = list(schedule_claims(rows))
    by_id = {record.id: to_jsonable(record) for record in records}
    for row in judged:
        assert row.cells, row.claim
        figure: Callable[..., again.Figures] = again.SAMPLED[row.formula.value]
        for cell in row.cells:
            values = figure(*([by_id[own] for own in ids] for ids in cell.of))
            found = [cell.value.median] * len(values) if cell.value.exact else cell.value.sample
            assert sorted(values) == pytest.approx(sorted(found), rel=1e-12), row.claim
    # two seeds decide nothing, and what draws nothing is decided by one run
    undecided = {row.claim.partition(" ")[0] for row in judged if row.outcome is Outcome.UNDECIDED}
    assert undecided <= {"pFabric", "PIAS"}
    assert {row.outcome for row in judged if row.claim.partition(" ")[0] not in ("pFabric", "PIAS")} == {Outcome.MET}


def test_without_records_claims_on_schedulers_are_not_measured() -> None:
    assert {row.outcome for row in schedule_claims({})} == {Outcome.NOT_MEASURED}


def test_exact_cells_become_bars_by_question_and_a_curve_by_size(records: list[Record]) -> None:
    drawn = {drawing.name: drawing for drawing in flow_drawings(flow_rows(_by_cell(records)))}
    assert set(drawn) == {
        "flows-schedule", "flows-paths", "flows-circuits", "flows-schedule-mixed-70",
        "flows-goodput-by-megabytes-per-rack",
    }  # fmt: skip
    (axes,) = drawn["flows-paths"].figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stride", "ring-1", "ring-2", "ring-3", "ficonn"]
    assert max(bar.get_width() for bar in axes.patches) == 1.0
    assert "exact" in drawn["flows-paths"].caption


def _by_cell(records: list[Record]) -> list[list[Record]]:
    cells: dict[str, list[Record]] = {}
    for record in records:
        cells.setdefault(record.cell, []).append(record)
    return list(cells.values())
