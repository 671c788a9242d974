"""Calibration, whole trials foretold, and the command."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from baselines.api import Message
from baselines.strategy import parse_strategy
from crossover import Sharing
from fabric.api import FabricKind, FabricSpec
from harness.bench import Bench
from harness.lab.labs import Labs, TaskRunner
from harness.lab.messages import Probe
from harness.predict.bounds import compute_s
from harness.predict.calibration import (
    EAGER_ROWS,
    ENGINE_ROWS,
    ONE_LANE,
    OTHER_EXCHANGES,
    RING_ROWS,
    UPDATE_ROWS,
    Calibrated,
    Calibration,
    RowTime,
    extrapolated,
    fit,
    read_calibration,
    row_s,
    write_calibration,
)
from harness.predict.costs import (
    Cost,
    EngineCosts,
    LinkCosts,
    PredictError,
    given_costs,
    hop_of,
    ring_theory,
)
from harness.predict.demand import Demands
from harness.predict.layers import layers_of, plain_layers
from harness.predict.paced import (
    CHAIN,
    FOUR_LANES,
    LONG,
    NUM_RANKS,
    PILING,
    QUEUED,
    Chain,
    ChainSteps,
    fit_paced,
    gap_of,
    measure_paced,
    paced_costs,
)
from harness.predict.step import predict_step
from harness.predict.trial import Foretold, foretell, predict_trial, simulated_record
from harness.trial import Job, Trial
from models.workload import Device, WorkloadSpec
from results.lines import line_s_per_byte
from results.record import Environment, Prediction, Status, read_record, write_record
from suites.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REPLAY = WorkloadSpec(network="resnet50", device=Device.REPLAY, size_scale=50)
SLOW = FabricSpec(kind=FabricKind.EMULATED, num_hosts=2, rate_bps=50e6)
TRUE = LinkCosts(
    world=4,
    primitives={"AllReduce": Cost(6e-4, 6.4e-8), "Gather": Cost(3e-4, 1.2e-7), "Broadcast": Cost(3e-4, 8e-8)},
    occupied=0.4,
    overlap=0.5,
    engine=EngineCosts(message_s=1e-4, message_s_per_byte=3e-10, wake_s=1e-4),
)


def asked(fabric: FabricSpec, strategy: str = "fixed-buckets", **settings: object) -> Trial:
    job = Job(name="job", workload=REPLAY, strategy=strategy)
    return Trial(suite="test", cell=f"test/{strategy}", jobs=(job,), fabric=fabric, **settings)  # type: ignore[arg-type]


def rows_of(costs: LinkCosts) -> list[RowTime]:
    """What a machine with exactly these costs would measure."""
    engine = costs.engine
    times = [RowTime(row=row, seconds=row.num_tensors * engine.on_message_s(row.num_bytes)) for row in ENGINE_ROWS]
    times += [
        RowTime(row=row, seconds=1e-4 + 1e-5 * row.num_tensors + 2e-10 * row.num_tensors * row.num_bytes)
        for row in UPDATE_ROWS
    ]
    times += [RowTime(row=row, seconds=3e-5 * row.num_tensors) for row in EAGER_ROWS]
    return times + [RowTime(row=row, seconds=row_s(row, costs)) for row in RING_ROWS]


def test_the_fit_gives_back_the_costs_that_rows_were_made_with() -> None:
    fabric = FabricSpec(kind=FabricKind.EMULATED, num_hosts=4, rate_bps=200e6)
    found = fit(fabric, rows_of(TRUE))
    assert found.costs.residual < 0.02
    for row in found.rows:
        if row.row.probe is Probe.EXCHANGE:
            assert row.fitted_s == pytest.approx(row.seconds, rel=0.02)
    ring = found.costs.primitives["AllReduce"]
    assert ring.beta_s_per_byte == pytest.approx(6.4e-8, rel=0.05)
    assert found.costs.alpha_s == pytest.approx(TRUE.alpha_s, rel=0.1)
    assert found.costs.engine.update_s_per_tensor == pytest.approx(1e-5)
    assert found.costs.engine.eager_s == pytest.approx(3e-5 - 1e-5)


def test_rows_of_noise_make_no_primitive_faster_than_the_line_when_costs_are_fitted_anew(tmp_path: Path) -> None:
    """Two messages of 131 kB in less time than four of 4 kB, at 200 Mbit/s; the ring's own costs stay as they are."""
    one = RING_ROWS[0]
    others = [
        RowTime(row=replace(one, num_tensors=num, num_bytes=size, strategy=f"{ONE_LANE}+{exchange}"), seconds=seconds)
        for exchange in OTHER_EXCHANGES
        for num, size, seconds in ((4, 4_096, 0.03), (2, 131_072, 0.02))
    ]
    spoiled = {**TRUE.primitives, **{name: Cost(1e-3, 1e-22) for name in OTHER_EXCHANGES.values()}}
    entry = Calibrated(
        kind=FabricKind.EMULATED,
        num_hosts=4,
        rate_bps=200e6,
        costs=replace(TRUE, primitives=spoiled),
        rows=(*rows_of(TRUE), *others),
    )
    unmeasured, path = calibrated(2, 1e9, 1e-4), tmp_path / "calibration.json"
    write_calibration(Calibration(entries=(entry, unmeasured)), path)
    assert main(["predict", "--refit", "--calibration", str(path)]) == 0
    found, kept = read_calibration(path).entries
    assert kept == unmeasured
    assert (found.num_hosts, found.rate_bps, len(found.rows)) == (4, 200e6, len(entry.rows))
    assert found.costs.primitives["AllReduce"].beta_s_per_byte == pytest.approx(6.4e-8, rel=0.05)
    hop = hop_of(Cost(0.0, line_s_per_byte(200e6, 4)), 4)
    for name in OTHER_EXCHANGES.values():
        line = ring_theory(name, 4, hop).beta_s_per_byte
        assert line * (1 - 1e-9) <= found.costs.primitives[name].beta_s_per_byte <= 1.1 * line * (1 + 1e-9)


@pytest.mark.parametrize("exchange", ["all-reduce", *OTHER_EXCHANGES])
def test_no_committed_calibration_predicts_a_transfer_faster_than_its_line(
    exchange: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As measured, and for numbers of workers and rates that were not."""
    monkeypatch.setattr("harness.predict.calibration.FARTHEST", 16.0)
    paths = sorted((ROOT / "results").glob("**/calibration/*.json"))
    assert paths
    message = Message(0, plain_layers([0.0], [0.0], [2_500_000]).segments)
    for path in paths:
        known = read_calibration(path)
        measured = [(entry.kind, entry.num_hosts, entry.rate_bps) for entry in known.entries if entry.rate_bps]
        for kind, world, rate_bps in (*measured, *((kind, 16, 2 * rate_bps) for kind, _, rate_bps in measured)):
            demand = Demands(parse_strategy(f"unfused+{exchange}"), known.costs(kind, world, rate_bps)).of(message)
            assert demand.bytes_s >= demand.sent_bytes * 8 / rate_bps, (path.name, world, rate_bps)


def chain_steps(machine: LinkCosts) -> ChainSteps:
    """What a machine whose link is free but for these costs would measure."""

    def step_s(chain: Chain, strategy: str) -> float:
        costs = replace(machine, primitives=paced_costs(chain.link, NUM_RANKS).primitives)
        return predict_step(layers_of(chain.profile), parse_strategy(strategy), costs).step_s

    return ChainSteps(
        alone_s=compute_s(layers_of(CHAIN.profile), parse_strategy(QUEUED), machine),
        queued_s=step_s(CHAIN, QUEUED),
        by_lane_s=step_s(CHAIN, ONE_LANE),
        piled_up_s=step_s(PILING, FOUR_LANES),
        long_s=step_s(LONG, ONE_LANE),
    )


def surroundings(by_lane_s: float = 2e-4) -> LinkCosts:
    """One whose threads take 0.1 ms to wake up, whose messages by lanes take so much of the interpreter and a gap of
    0.3 ms, which grows by 0.1 with each doubling, and whose steps take 2 ms beside their layers."""
    updates = {"update_s": 1e-4, "update_s_per_tensor": 1e-5, "update_s_per_byte": 2e-10, "eager_s": 2e-5}
    engine = replace(TRUE.engine, **updates, wake_s=1e-4, loop_s=2e-3, by_lane_s=by_lane_s)
    return replace(paced_costs(CHAIN.link, NUM_RANKS), gap_s=3e-4, gap_per_doubling_s=1e-4, engine=engine)


@cache
def fitted() -> Calibrated:
    """What is found of `surroundings`; a fit takes seconds."""
    return fit_paced(rows_of(TRUE), chain_steps(surroundings()))


def test_what_surrounds_a_paced_link_is_found_again() -> None:
    """The loop, the wake-up, the gap, its growth, and the interpreter's time of a message by a lane."""
    found = fitted().costs
    assert found.engine.wake_s == pytest.approx(1e-4, rel=0.05)
    assert found.engine.loop_s == pytest.approx(2e-3, rel=0.02)
    assert found.engine.message_s == pytest.approx(TRUE.engine.message_s, rel=0.05)
    assert found.engine.by_lane_s == pytest.approx(2e-4, rel=0.05)
    assert gap_of(found) == pytest.approx(3e-4, rel=0.05)
    assert found.gap_per_doubling_s == pytest.approx(1e-4, rel=0.05)


def test_a_gap_grows_with_what_a_message_takes_until_a_processor_sleeps_as_deep_as_it_can() -> None:
    machine = surroundings()
    assert machine.gap_before_s(1e-5) == machine.gap_before_s(1e-3) == pytest.approx(3e-4)
    assert machine.gap_before_s(4e-3) == pytest.approx(5e-4)
    assert machine.gap_before_s(1.0) == machine.gap_before_s(16e-3) == pytest.approx(7e-4)


def test_a_machines_engine_and_gaps_are_in_what_is_predicted_on_its_paced_link() -> None:
    """161 tensors of ResNet-50, one update: 1e-4 s and 1e-5 s per tensor more; and the gap and the lane of one message,
    unless it queues in the link."""
    machine = fitted()

    def step_s(strategy: str, *known: Calibrated) -> float:
        found = predict_trial(asked(PACED, strategy), Calibration(entries=known))
        assert isinstance(found, Prediction)
        assert not known or "as measured" in found.source
        assert found.step_time_s is not None
        return found.step_time_s

    queued_s, by_lane_s = step_s("single-bucket", machine), step_s("single-bucket+fifo(depth=1)", machine)
    assert queued_s - step_s("single-bucket") > 1e-4 + 161 * 1e-5 + machine.costs.engine.loop_s
    one_message_s = machine.costs.gap_before_s(1.0) + machine.costs.engine.by_lane_s
    assert by_lane_s - queued_s == pytest.approx(one_message_s)


def test_a_round_of_control_takes_the_interpreter_twice_as_a_message_by_a_lane_does_once() -> None:
    """One message that a round decides, when all is ready: gathered, told, sent."""
    layers, plain = layers_of(CHAIN.profile), parse_strategy("single-bucket+p3")
    free_s, busy_s = (predict_step(layers, plain, surroundings(by_lane_s)).step_s for by_lane_s in (0.0, 2e-3))
    assert busy_s - free_s == pytest.approx(3 * 2e-3, rel=0.05)


def test_this_machine_is_measured_on_a_real_paced_link(labs: Labs) -> None:
    # of one repeat a row that waited for a core would take the whole gap with it
    found = measure_paced(labs, num_repeats=5, num_steps=2, num_rounds=1).costs
    assert found.engine.message_s > 0
    assert found.engine.update_s_per_tensor + found.engine.update_s > 0
    assert found.engine.eager_update_s(1, 0) > 0
    # Beside other work noise may take one of them to nothing, but not all that surrounds the link.
    assert gap_of(found) + found.engine.wake_s + found.engine.loop_s > 0


def calibrated(num_hosts: int, rate_bps: float, alpha_s: float, extra_s: float = 0.0) -> Calibrated:
    costs = given_costs(num_hosts, alpha_s=alpha_s, beta_s_per_byte=8 / rate_bps)
    ring = costs.primitives["AllReduce"]
    costs = replace(costs, primitives={"AllReduce": Cost(ring.alpha_s + extra_s, ring.beta_s_per_byte)})
    return Calibrated(kind=FabricKind.EMULATED, num_hosts=num_hosts, rate_bps=rate_bps, costs=costs)


def test_costs_for_more_workers_and_other_rates_follow_the_ring_and_say_so() -> None:
    calibration = Calibration(entries=tuple(calibrated(num, 1e9, 1e-4, 5e-4) for num in (2, 4, 8)))
    assert calibration.costs(FabricKind.EMULATED, 4, 1e9) is calibration.entries[1].costs
    assert calibration.costs(FabricKind.EMULATED, 16, 2e9).source == "extrapolated from P = 2, 4, 8 at 1 Gbit/s"
    for world, rate_bps in ((17, 1e9), (8, 2.1e9), (8, 0.4e9)):
        with pytest.raises(PredictError, match="more than 2 times beyond what was measured: 2, 4, 8 hosts at 1 Gbit/s"):
            calibration.costs(FabricKind.EMULATED, world, rate_bps)
    far = extrapolated(calibration.entries, 1024, 2e9)
    assert far.primitives["AllReduce"].alpha_s == pytest.approx(2 * 1023 * 1e-4 + 5e-4)
    assert far.primitives["AllReduce"].beta_s_per_byte == pytest.approx(2 * 1023 / 1024 * 8 / 2e9)
    with pytest.raises(PredictError, match="--calibrate"):
        calibration.costs(FabricKind.NATIVE, 2, None)


def test_a_calibration_survives_its_file(tmp_path: Path) -> None:
    calibration = Calibration(entries=(calibrated(2, 1e9, 1e-4),))
    write_calibration(calibration, tmp_path / "calibration.json")
    assert read_calibration(tmp_path / "calibration.json") == calibration
    (tmp_path / "calibration.json").write_text("{", encoding="utf-8")
    with pytest.raises(PredictError, match="is no calibration"):
        read_calibration(tmp_path / "calibration.json")
    with pytest.raises(PredictError, match="no calibration at"):
        read_calibration(tmp_path / "absent.json")


PACED = FabricSpec(kind=FabricKind.PACED, num_hosts=1, num_virtual=8, rate_bps=1e9, alpha_s=2e-5)


def test_a_trial_on_the_paced_fabric_needs_no_calibration() -> None:
    told = predict_trial(asked(PACED, "single-bucket"), Calibration())
    assert isinstance(told, Prediction)
    num_bytes = 4 * 25_557_032 / 50
    exchange_s = 14 * 2e-5 + 1.75 * 8e-9 * num_bytes
    assert told.step_time_s == pytest.approx(32 / 367 + exchange_s, rel=0.01)


@pytest.mark.parametrize(
    ("trial", "words"),
    [
        (replace(asked(PACED), jobs=(Job(name="a", workload=REPLAY, system="torch-ddp"),)), "torch-ddp decides"),
        (replace(asked(PACED), jobs=(Job(name="a", workload=WorkloadSpec(network="resnet20")),)), "computes on cpu"),
        (replace(asked(PACED), jobs=(Job(name="a", workload=replace(REPLAY, jitter=0.1)),)), "jitter=0.1"),
        (
            replace(
                asked(PACED),
                jobs=(Job(name="a", workload=REPLAY), Job(name="b", workload=REPLAY)),
                sharing=Sharing.NAIVE,
            ),
            "jobs share",
        ),
        (asked(SLOW), "no costs are known"),
    ],
)
def test_what_cannot_be_predicted_says_why(trial: Trial, words: str) -> None:
    told = predict_trial(trial, Calibration())
    assert isinstance(told, str)
    assert words in told


def test_accumulated_micro_batches_compute_longer_and_send_once() -> None:
    once, thrice = (
        foretell(replace(asked(PACED), jobs=(Job(name="a", workload=REPLAY, accumulate=num),)), Calibration())
        for num in (1, 3)
    )
    assert isinstance(once, Foretold)
    assert isinstance(thrice, Foretold)
    assert thrice.step.step_s == pytest.approx(once.step.step_s + 2 * 32 / 367, rel=0.01)
    assert thrice.step.num_messages == once.step.num_messages


def test_a_foretold_cell_is_a_record_labelled_simulated(tmp_path: Path) -> None:
    trial = asked(PACED)
    found = foretell(trial, Calibration())
    assert isinstance(found, Foretold)
    path = write_record(simulated_record(trial, found, Environment(), world=8), tmp_path)
    record = read_record(path)
    assert (record.status, record.fabric.label) == (Status.OK, "simulated")
    assert record.prediction is not None
    assert record.jobs[0].step_times_s() == (record.prediction.step_time_s,)
    skipped = simulated_record(trial, "for a reason", Environment(), world=8)
    assert (skipped.status, skipped.reason) == (Status.SKIPPED, "for a reason")


def test_the_command_predicts_a_grid_and_refuses_nonsense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = ["predict", "--workload", "vgg16", "--hosts", "1,8,1024", "--rates", "10gbit", "--alpha", "2e-5"]
    assert main([*grid, "--strategies", "fixed-buckets", "--json", "--out", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["hosts"] for row in rows] == [1, 8, 1024]
    assert rows[0]["efficiency"] == pytest.approx(1.0)
    assert all(row["step_s"] >= row["bound_s"] - 1e-9 for row in rows)
    assert len(list(tmp_path.glob("*.json"))) == 3
    assert main([*grid, "--strategies", "fixed-buckets"]) == 0
    assert "step time and scaling efficiency" in capsys.readouterr().out
    for wrong in (["predict"], ["predict", "quick", "--beta", "1"], [*grid[:3], "--alpha", "1", "--hosts", "x"]):
        assert main(wrong) == 2


def test_a_paced_trial_is_foretold_from_what_was_measured_beside_its_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that is faster in one repeat than in another does not make predictions wrong in either."""
    by_lane_s = iter((2e-4, 8e-4))

    def measured(_: TaskRunner) -> Calibrated:
        costs: LinkCosts = fitted().costs
        return replace(fitted(), costs=replace(costs, engine=replace(costs.engine, by_lane_s=next(by_lane_s))))

    monkeypatch.setattr("harness.bench.measure_paced", measured)
    with Bench(foresees=True) as bench:
        told = [bench._foretold(replace(asked(PACED, "unfused+fifo(depth=1)"), repeat=repeat)) for repeat in (0, 0, 1)]
        (kept,) = bench.calibration.entries
    first, again, later = (prediction.step_time_s for prediction in told if prediction is not None)
    assert first is not None
    assert first == again
    assert later is not None
    assert later > first
    assert kept.costs.engine.by_lane_s > 5e-4
