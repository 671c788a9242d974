"""Trials without jobs: flows in the packet engine, their records, the figures and claims that are made of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from analysis.claims import Outcome
from analysis.flows import rows as measured
from analysis.flows.figures import flow_drawings
from analysis.flows.rows import FlowRow, flow_rows
from analysis.summary import summarise
from fabric.api import FabricKind, FabricSpec, NetworkSpec
from fabric.simulated.flow_traffic import FlowGroup, MixedLoad, PacketTraffic
from fabric.simulated.graph import NetworkError
from harness.checks.trial import check
from harness.simulated.flows import run_traffic, traffic_record
from harness.trial import Trial, TrialError
from results.codec import from_jsonable, to_jsonable
from results.record import Environment, Record, Status
from results.traffic import GroupFacts, TrafficFacts
from scripts import recompute_claims as again
from suites.networks.flow_levels import Rows
from suites.networks.packet_claims import packet_claims
from suites.networks.packets import packet_cell, packet_cells, senders, star
from suites.networks.study import STUDY

TWO = PacketTraffic(groups=(senders(2, 1e6),))


def asked(traffic: PacketTraffic = TWO, transport: str = "roce-v2", topology: str = star(4)) -> Trial:
    return packet_cell("packets-test", transport, topology, transport, traffic)


def recorded(trial: Trial) -> Record:
    return traffic_record(trial, Environment())


def test_the_same_trial_gives_the_same_record_and_another_seed_another_one() -> None:
    first, second = recorded(asked()), recorded(asked())
    assert first == second
    assert recorded(replace(asked(), seed=2)).traffic != first.traffic


def test_a_record_survives_being_written() -> None:
    record = recorded(asked(PacketTraffic(groups=(senders(2),), until_s=1e-4, num_samples=5), "dctcp"))
    assert from_jsonable(Record, to_jsonable(record)) == record
    assert from_jsonable(Trial, record.trial) == asked(
        PacketTraffic(groups=(senders(2),), until_s=1e-4, num_samples=5), "dctcp"
    )
    assert record.traffic is not None
    assert len(record.traffic.queue_bytes) == 5
    assert record.traffic.groups[0].end_s == (None, None)


def test_flows_that_are_alone_take_the_time_alone_and_two_take_twice_as_long() -> None:
    alone = run_traffic(asked(PacketTraffic(groups=(senders(1, 1e6),))))
    # a packet in a hundred more: acknowledgements and rounding
    assert measured.slowdowns(alone) == pytest.approx([1.0], rel=0.01)
    assert measured.slowdowns(run_traffic(asked())) == pytest.approx([2.0, 2.0], rel=0.02)


def test_a_mixed_load_is_drawn_by_the_seed_and_offers_what_it_says() -> None:
    topology = "fat-tree(k=4, gbit=40)"
    run = run_traffic(asked(PacketTraffic(mixed=MixedLoad(num_flows=200, load=0.5)), topology=topology))
    (group,) = run.groups
    assert len(group.num_bytes) == 200
    assert None not in group.end_s
    offered = 8 * sum(group.num_bytes) / max(group.start_s) / (16 * 40e9)
    # the mean of 200 sizes and of 200 gaps: each off by 7 to 15 %
    assert offered == pytest.approx(0.5, rel=0.4)
    assert sum(size <= 1e5 for size in group.num_bytes) / 200 == pytest.approx(0.85, abs=0.1)


@pytest.mark.parametrize(
    ("trial", "error", "message"),
    [
        (asked(PacketTraffic()), NetworkError, "give one of them"),
        (asked(PacketTraffic(groups=(senders(2),), from_s=2.0, until_s=1.0)), NetworkError, "end later"),
        (asked(transport="quic"), NetworkError, "use one of cubic"),
        (asked(PacketTraffic(groups=(senders(9, 1e6),))), NetworkError, "use a larger one"),
        (
            asked(PacketTraffic(groups=(FlowGroup(name="a", sources=(1, 2, 3), destinations=(0, 4), num_bytes=1.0),))),
            NetworkError,
            "one for each",
        ),
    ],
)
def test_bad_traffic_names_the_value_and_the_remedy(trial: Trial, error: type[ValueError], message: str) -> None:
    with pytest.raises(error, match=message):
        check(trial)


def test_traffic_goes_nowhere_but_on_a_simulated_network() -> None:
    with pytest.raises(TrialError, match="flows are simulated"):
        replace(asked(), fabric=FabricSpec(kind=FabricKind.EMULATED))
    with pytest.raises(TrialError, match="no jobs; a trial has one or more"):
        replace(asked(), traffic=None)


def test_every_cell_of_the_suite_can_run() -> None:
    for trial in packet_cells():
        check(trial)


def by_label(found: Sequence[FlowRow]) -> Rows:
    """As claims look for them."""
    return {(row.group, row.label): row for row in found}


def run_of(
    goodputs_bps: tuple[float, ...] = (1e9, 3e9), *, ends_s: tuple[float | None, ...] = (), queue: float = 10e3
) -> TrafficFacts:
    """A run of one second with these goodputs."""
    count = len(goodputs_bps)
    group = GroupFacts(
        name="flows",
        num_bytes=(1e9,) * count,
        start_s=(0.5,) * count,
        end_s=ends_s or (None,) * count,
        alone_s=(0.25,) * count,
        before_bytes=(1e6,) * count,
        delivered_bytes=tuple(1e6 + rate / 8 for rate in goodputs_bps),
        round_trip_s=(1e-5, 3e-5, None)[:count],
    )
    return TrafficFacts(
        groups=(group,), from_s=0.0, now_s=1.0, num_events=1, num_resent=0, num_timeouts=0, num_drops=0, num_marks=0,
        num_paused=0, mean_queue_bytes=queue, mark_bytes=5e3, least_round_trip_s=1e-5, queue_bytes=(5_000, 20_000),
        times_s=(0.5, 1.0), num_pauses=(0, 1),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("figure", "expected"),
    [
        (measured.goodput_bps, 4e9),
        (measured.least_share, 0.5),
        (measured.completion_s, 0.5),
        (measured.round_trip_s, 2e-5),
        (measured.queue_over_mark, 2.0),
        (measured.waits_in_circle, 0.0),
        (measured.highest_over_limit, 20_000 / (5_000 + 2 * 1538)),
    ],
)
def test_figures_of_a_run_are_what_they_are_called(figure: measured.Figure, expected: float) -> None:
    assert figure(run_of()) == pytest.approx(expected)


def test_completion_counts_flows_that_have_not_ended_until_the_end() -> None:
    assert measured.completion_s(run_of(ends_s=(0.75, None))) == pytest.approx((0.25 + 0.5) / 2)
    assert measured.slowdowns(run_of(ends_s=(0.75, None))) == [1.0]


def record_of_run(cell: str, repeat: int, run: TrafficFacts) -> Record:
    """As a trial of this cell would have written it."""
    made = recorded(asked(PacketTraffic(groups=(senders(1, 1e3),))))
    return replace(made, id=f"{cell}.r{repeat:02d}", cell=cell, repeat=repeat, status=Status.OK, traffic=run)


def test_claims_are_judged_from_records_and_the_script_finds_the_same_figures() -> None:
    rng = np.random.default_rng(0)
    records = [
        record_of_run(trial.cell, repeat, run_of(tuple(rng.uniform(1e9, 2e9, 2)), queue=rng.uniform(1, 2)))
        for trial in packet_cells()
        for repeat in range(6)
    ]
    page = summarise(records, studies=[replace(STUDY, suite="networks")])
    judged = list(packet_claims(by_label(page.flows)))
    assert {row.outcome for row in judged} <= {Outcome.MET, Outcome.MISSED, Outcome.UNDECIDED}
    by_id = {record.id: to_jsonable(record) for record in records}
    for row in judged:
        figure: Callable[..., again.Figures] = again.SAMPLED[row.formula.value]
        for cell in row.cells:
            values = figure(*([by_id[own] for own in ids] for ids in cell.of))
            assert sorted(values) == pytest.approx(sorted(cell.value.sample), rel=1e-12), row.claim


def test_without_records_claims_on_transports_are_not_measured() -> None:
    assert {row.outcome for row in packet_claims({})} == {Outcome.NOT_MEASURED}


def test_records_become_the_figures_that_they_can_fill() -> None:
    sampled = PacketTraffic(groups=(senders(2),), until_s=1e-4, num_samples=4)
    records = [recorded(asked(sampled, transport)) for transport in ("roce-v2", "dctcp")]
    mixed = PacketTraffic(mixed=MixedLoad(num_flows=60, load=0.5))
    records.append(replace(recorded(asked(mixed)), id="mixed", cell="packets-mixed/packets/roce-v2"))
    for count in (2, 4):
        for kind, traffic in (("senders", PacketTraffic(groups=(senders(count, 1e4),))), ("flows", sampled)):
            trial = packet_cell(f"packets-{kind}-{count}", "dctcp", star(4), "dctcp", traffic, axis=kind, at=count)
            records.append(recorded(trial))
    drawn = {drawing.name for drawing in flow_drawings(flow_rows([[record] for record in records]))}
    assert drawn == {
        "flows-packets-test", "flows-packets-mixed", "flows-goodput-by-senders", "flows-queue-by-flows"
    }  # fmt: skip


def test_a_network_with_failed_cables_carries_flows_too() -> None:
    trial = asked(PacketTraffic(groups=(senders(3, 1e5),)), topology="fat-tree(k=4, gbit=40)")
    network = NetworkSpec(topology="fat-tree(k=4, gbit=40)", transport="irn", num_failed=4)
    run = run_traffic(replace(trial, fabric=replace(trial.fabric, network=network)))
    assert None not in run.groups[0].end_s
