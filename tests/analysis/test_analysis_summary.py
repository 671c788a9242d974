import json
import math
from dataclasses import replace

import numpy as np
import pytest
from synthetic_records import EMULATED, REPLAY, absent, quick_suite, shared, single

from analysis.cells import numbered, samples_per_step
from analysis.rows import CellRow, SettingRow, SharingRow, Tone
from analysis.sharing.steady import steady_step_time_s
from analysis.summary import NoRecordsError
from analysis.tables import rows_as_json, setting_table
from analysis.targets.training import Baseline, full_size
from analysis.verdict import setting_verdict
from results.facts import CheckFacts, Role, SplitFacts
from results.record import UNUSED, CurvePoint, JobResult, RankTimes, Record, Status
from suites.reports import summary_of

HALF = "tensor-fusion(cycle_s=0.005)+half"
SPLIT = SplitFacts(
    planner="tofu", overlap=True, splits=("sample=4",), step_planned_s=None, step_clock_s=None, compute_s=0.1,
    exchange_s=0.1, sent_bytes=1.0, memory_bytes=(1,),
)  # fmt: skip


def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def setting(records: list[Record]) -> SettingRow:
    (only,) = summary_of(records).settings
    return only


def row(found: SettingRow, label: str) -> CellRow:
    return next(cell for cell in found.cells if cell.label == label)


def cells(*labels: str, num_repeats: int = 3) -> list[Record]:
    generator = rng()
    return [single("resnet20-digits", label, n, generator) for n in range(num_repeats) for label in labels]


def with_steps(record: Record, *ranks: tuple[float, ...]) -> Record:
    times = tuple(RankTimes(rank=n, warmup_s=(), steps_s=steps) for n, steps in enumerate(ranks))
    return replace(record, jobs=(replace(record.jobs[0], ranks=times),))


def with_curve(record: Record, *losses: float) -> Record:
    points = tuple(CurvePoint(step=n, time_s=float(n), loss=loss) for n, loss in enumerate(losses))
    return replace(record, jobs=(replace(record.jobs[0], curve=points),))


def with_held_out(record: Record, loss: float, accuracy: float) -> Record:
    point = CurvePoint(step=2, time_s=2.0, loss=loss, accuracy=accuracy)
    return replace(record, jobs=(replace(record.jobs[0], curve=(*record.jobs[0].curve, point)),))


def test_every_cell_of_the_suite_is_a_row_or_an_outcome() -> None:
    records = quick_suite(2)
    summary = summary_of(records)
    shown = {cell.cell for found in summary.settings for cell in found.cells}
    shown |= {sharing.cell for pair in summary.pairs for sharing in pair.rows}
    shown |= {outcome.cell for outcome in summary.outcomes}
    assert shown == {record.cell for record in records}
    assert len(summary.settings) == 4
    assert len(summary.pairs) == 2
    assert len(summary.verdicts) == 6


def test_the_same_records_in_any_order_give_the_same_summary() -> None:
    records = quick_suite(2)
    assert rows_as_json(summary_of(records)) == rows_as_json(summary_of(records[::-1]))


@pytest.mark.parametrize(("fewest", "tone"), [(HALF, Tone.PAYS), ("unfused", Tone.OPEN)])
def test_six_repeats_decide_for_the_cell_with_the_fewest_bytes_that_the_engine_counted(fewest: str, tone: Tone) -> None:
    labels = ("fixed-buckets", "unfused", "tensor-fusion(cycle_s=0.005)", "torch-ddp", HALF)
    records = []
    for record in cells(*labels, num_repeats=6):
        strategy = record.jobs[0].strategy
        timed = with_steps(record, (0.1 if strategy == HALF else 0.2,) * 4).jobs[0]
        # what the interface counted says otherwise, and holds what was sent again
        job = replace(timed, wire_bytes={"gradient": 1e6 if strategy == fewest else 2e6})
        records.append(
            replace(record, jobs=(replace(job, interface_bytes=4e6 - job.wire_bytes["gradient"], curve=()),))
        )
    (verdict,) = summary_of(records).verdicts
    assert verdict.tone is tone
    assert ("6 repeats cannot tell one of 4 rivals from luck, 9 can" in verdict.headline) is (tone is Tone.OPEN)


def test_throughput_counts_all_ranks_and_the_slowest_of_each_step() -> None:
    record = with_steps(cells("unfused", num_repeats=1)[0], (0.1, 0.3), (0.2, 0.1))
    found = row(setting([record]), "unfused")
    assert found.step_time_s.median == pytest.approx(0.25)
    assert found.samples_per_s.median == pytest.approx(64 * 2 / 0.25)


def test_a_step_has_every_micro_batch_and_parts_of_one_network_have_one_batch_among_them() -> None:
    job = replace(cells("unfused", num_repeats=1)[0].jobs[0], batch_size=16, accumulate=3)
    assert samples_per_step(job, 4) == 16 * 3 * 4
    assert samples_per_step(replace(job, split=SPLIT), 4) == 16 * 3


def test_the_line_without_communication_is_one_rank_times_the_ranks_of_the_setting() -> None:
    generator = rng()
    alone = single("resnet20-digits", "local", 0, generator, replace(EMULATED, kind="native", num_hosts=1))
    found = setting([*cells("torch-ddp", num_repeats=1), with_steps(alone, (0.1,))])
    assert found.ideal is not None
    assert found.ideal.samples_per_s.median == pytest.approx(64 * 2 / 0.1)


def test_speed_up_divides_repeats_of_the_same_number() -> None:
    base, own = cells("torch-ddp"), cells("unfused")
    base = [with_steps(record, (0.2 * 2**record.repeat,)) for record in base]
    own = [with_steps(record, (0.1 * 2**record.repeat,)) for record in own]
    speedup = row(setting(base + own), "unfused").speedup
    assert speedup is not None
    assert speedup.low == speedup.median == speedup.high == pytest.approx(2.0)


def again(records: list[Record], factor: float, machine: str = "") -> list[Record]:
    """The same trials in another run, a year later, that takes `factor` times as long."""
    return [
        replace(
            with_steps(record, *(tuple(factor * step for step in rank.steps_s) for rank in record.jobs[0].ranks)),
            environment=replace(record.environment, started_at="2027-07-21T08:00:00", machine=machine),
        )
        for record in records
    ]


def test_runs_read_together_divide_repeats_of_one_run_though_one_of_them_lacks_some() -> None:
    one = cells("torch-ddp", "unfused", num_repeats=4)
    slow = again(one, 1.5)
    dropped = [record for record in one if record.repeat > 0 or record.jobs[0].strategy != "torch-ddp"]
    alone, both = row(setting(one), "unfused").speedup, row(setting([*dropped, *slow]), "unfused").speedup
    assert alone is not None
    assert both is not None
    assert both.n == 7
    assert set(np.round(both.sample, 9)) == set(np.round(alone.sample, 9))


def test_a_session_that_adds_repeats_or_cells_goes_on_with_its_run_and_one_that_does_a_trial_again_does_not() -> None:
    first, more = cells("torch-ddp", num_repeats=3), again(cells("unfused", num_repeats=5), 1.0)
    assert [record.repeat for record in numbered([*first, *more])] == [0, 1, 2, 0, 1, 2, 3, 4]
    second = again(cells("torch-ddp", "unfused", num_repeats=3), 1.0, "another machine")
    assert [record.repeat for record in numbered([*second, *first])] == [0, 1, 2, 3, 3, 4, 4, 5, 5]


def test_without_the_baseline_the_fastest_uncompressed_cell_takes_its_place() -> None:
    found = setting(cells("unfused", "fixed-buckets", HALF))
    assert found.baseline == "fixed-buckets"
    assert {cell.label for cell in full_size(found.cells)} == {"unfused", "fixed-buckets"}


def test_the_baseline_can_be_chosen() -> None:
    summary = summary_of(cells("unfused", "torch-ddp"), baseline=Baseline("ours", "unfused"))
    assert summary.settings[0].baseline == "unfused"


def test_parameters_that_counted_as_zeros_are_named_under_the_table() -> None:
    records = [
        replace(record, jobs=(replace(record.jobs[0], notes={UNUSED: "extra.weight"}),))
        for record in cells("fixed-buckets")
    ]
    notes = setting_table(setting([*records, *cells("torch-ddp")])).notes
    assert [note for note in notes if note.endswith("act on them: extra.weight.")]


def test_plans_of_one_method_are_named_as_their_cells_beside_the_dense_one_of_their_group() -> None:
    planned = [
        replace(
            record,
            cell=f"{group}/resnet20-digits/{plan}",
            jobs=(replace(record.jobs[0], split=SPLIT, clock="virtual", role=role),),
        )
        for group in ("planned-1", "planned-10")
        for plan, role in (("by-hand", Role.DENSE), ("searched", Role.METHOD))
        for record in cells("fixed-buckets", num_repeats=1)
    ]
    ones, tens = summary_of(planned).settings
    assert [ones.title.rpartition(", ")[2], tens.title.rpartition(", ")[2]] == ["planned-1", "planned-10"]
    for found in (ones, tens):
        assert {cell.name for cell in found.cells} == {"by-hand", "searched"}
        assert found.baseline_name == "by-hand"
        assert setting_table(found).notes[0].startswith("By the virtual clock, which says the same every time. ")
        untrained = [replace(cell, time_to_target_s=None, target_speedup=None) for cell in found.cells]
        assert "repeat" not in setting_verdict(replace(found, cells=tuple(untrained))).headline


def test_fabrics_of_different_rates_never_share_a_setting() -> None:
    generator = rng()
    fast = single("resnet20-digits", "torch-ddp", 0, generator, replace(EMULATED, rate_bps=1e9))
    assert len(summary_of([*cells("torch-ddp", num_repeats=1), fast]).settings) == 2


def test_a_cell_that_misses_the_target_loss_cannot_win() -> None:
    base = [with_curve(record, 2.0, 1.0, 0.5) for record in cells("torch-ddp")]
    stuck = [with_curve(record, 2.0, 1.9, 1.8) for record in cells(HALF)]
    good = [with_curve(record, 2.0, 1.0, 0.5) for record in cells("fixed-buckets")]
    summary = summary_of(base + stuck + good)
    missed = row(summary.settings[0], HALF).time_to_target_s
    assert missed is not None
    assert missed.median == math.inf
    verdict = summary.verdicts[0]
    assert "fixed-buckets" in verdict.headline
    assert any("tensor-fusion+half" in detail and "not reached" in detail for detail in verdict.details)


def test_a_cell_that_some_repeats_take_to_the_target_and_others_do_not_cannot_win() -> None:
    """It would win in one run and be left out of the next; the next best pays in both."""
    base = [with_curve(record, 2.0, 1.0, 0.5) for record in cells("torch-ddp", num_repeats=9)]
    good = [with_curve(record, 2.0, 0.9, 0.4) for record in cells("fixed-buckets", num_repeats=9)]
    for reached in (4, 5, 9):
        losses = [(2.0, 0.4, 0.2) if number < reached else (2.0, 1.9, 1.8) for number in range(9)]
        near = zip(cells(HALF, num_repeats=9), losses, strict=True)
        tried = [with_steps(with_curve(record, *curve), *[(0.01,) * 3] * 2) for record, curve in near]
        slow = [with_steps(record, (0.2,) * 3, (0.2,) * 3) for record in base]
        fine = [with_steps(record, (0.1,) * 3, (0.1,) * 3) for record in good]
        (verdict,) = summary_of(slow + fine + tried).verdicts
        assert verdict.tone is Tone.PAYS, reached
        assert ("tensor-fusion+half" in verdict.headline) is (reached == 9), verdict.headline
        told = "not reached" if reached < 5 else "4 of 9 repeats not at all"
        assert reached == 9 or any(told in detail for detail in verdict.details), verdict.details
        assert not any(detail.startswith("Within its interval") for detail in verdict.details)


def test_one_that_is_surely_faster_is_not_said_to_be_so_by_luck() -> None:
    """The target leaves it open, which two of six repeats do not reach."""
    base = [with_curve(record, 2.0, 1.0, 0.5) for record in cells("torch-ddp", "fixed-buckets", num_repeats=6)]
    losses = [(2.0, 0.4, 0.2) if number < 4 else (2.0, 1.9, 1.8) for number in range(6)]
    tried = [with_curve(one, *curve) for one, curve in zip(cells(HALF, num_repeats=6), losses, strict=True)]
    timed = [with_steps(one, *[(0.2,) * 3] * 2) for one in base] + [
        with_steps(one, *[(0.01,) * 3] * 2) for one in tried
    ]
    (verdict,) = summary_of(timed).verdicts
    assert verdict.headline.startswith("Undecided. Fastest of the others: tensor-fusion+half")


def test_the_fastest_is_not_said_to_be_so_of_the_baselines_own_other_settings() -> None:
    """They are faster than what is named, and are no rivals of it."""
    systems = ("horovod(cycle_s=0.005)", "horovod(cycle_s=0.005, fusion_threshold_bytes=0)", "unfused")
    times = {systems[0]: 0.1, systems[1]: 0.11, systems[2]: 0.2}
    made = map(with_curve, cells(*systems, num_repeats=6))  # without a target
    timed = [with_steps(one, *[(times[one.jobs[0].strategy],) * 3] * 2) for one in made]
    (verdict,) = summary_of(timed, baseline=Baseline("horovod")).verdicts
    assert "Fastest of what is not horovod: unfused" in verdict.headline


def test_a_cell_that_reaches_the_target_later_cannot_win() -> None:
    """Faster steps, but more of them: what pays is training that is done sooner."""
    base = [with_curve(record, 2.0, 1.0, *[0.5] * 18) for record in cells("torch-ddp")]
    slow = [with_curve(record, 2.0, *[1.5] * 9, *[0.2] * 10) for record in cells(HALF)]
    good = [with_curve(record, 2.0, 0.9, *[0.4] * 18) for record in cells("fixed-buckets")]
    summary = summary_of(base + slow + good)
    later = row(summary.settings[0], HALF).time_to_target_s
    assert later is not None
    assert math.isfinite(later.median)
    verdict = summary.verdicts[0]
    assert "fixed-buckets" in verdict.headline
    assert any("tensor-fusion+half" in detail and "reaches the target in" in detail for detail in verdict.details)
    alone = summary_of(base + slow).verdicts[0]
    assert alone.headline == "No other system reached the target as soon."


@pytest.mark.parametrize(("has_fast", "tone"), [(False, Tone.NOTHING_PAYS), (True, Tone.OPEN)])
def test_what_is_faster_and_trains_no_sooner_does_not_show_that_nothing_pays(has_fast: bool, tone: Tone) -> None:
    seconds = {"torch-ddp": 0.2, "unfused": 0.3} | ({HALF: 0.1} if has_fast else {})
    records = []
    for label, step_s in seconds.items():
        losses = (2.0, *[1.5] * 9, *[0.2] * 10) if label == HALF else (2.0, 1.0, *[0.5] * 18)
        records += [with_curve(with_steps(one, (step_s,) * 4), *losses) for one in cells(label, num_repeats=8)]
    (verdict,) = summary_of(records).verdicts
    assert verdict.tone is tone


def test_a_diverged_repeat_counts_as_infinite_and_is_shown_with_its_reason() -> None:
    base = [with_curve(record, 2.0, 1.0, 0.5) for record in cells("torch-ddp")]
    own = [with_curve(record, 2.0, 1.0, 0.5) for record in cells("unfused")]
    own[1:] = [replace(record, status=Status.DIVERGED, reason="loss is NaN at step 7") for record in own[1:]]
    summary = summary_of(base + own)
    time_s = row(summary.settings[0], "unfused").time_to_target_s
    assert time_s is not None
    assert time_s.median == math.inf
    assert summary.outcomes[0].reason == "loss is NaN at step 7"
    assert (summary.outcomes[0].num_repeats, summary.outcomes[0].num_tried) == (2, 3)


def test_invalid_trials_of_a_cell_are_one_outcome_with_the_worst_of_each_check() -> None:
    stolen = (0.03, 0.08, 0.01)
    made = [
        replace(
            record,
            status=Status.INVALID if share > 0.02 else Status.OK,
            reason=f"stolen: {share}",
            checks=(CheckFacts(quantity="stolen", found=share, most=0.02),),
        )
        for record, share in zip(cells("unfused"), stolen, strict=True)
    ]
    (found,) = summary_of([*cells("torch-ddp"), *made]).outcomes
    assert found.reason == "stolen: up to 8.0% in 2 trials, at most 2% allowed"
    assert (found.num_repeats, found.num_tried) == (2, 3)


def test_a_trial_that_passed_its_checks_and_is_invalid_says_why() -> None:
    passed = (CheckFacts(quantity="stolen", found=0.01, most=0.02),)
    why = "its gain lies above the hard limit"
    made = [replace(record, status=Status.INVALID, reason=why, checks=passed) for record in cells("unfused")]
    (found,) = summary_of([*cells("torch-ddp"), *made]).outcomes
    assert found.reason == why


@pytest.mark.parametrize("num_repeats", [1, 5])
def test_fewer_than_six_repeats_decide_nothing(num_repeats: int) -> None:
    verdict = summary_of(cells("torch-ddp", HALF, num_repeats=num_repeats)).verdicts[0]
    assert verdict.tone is Tone.OPEN
    assert f"{num_repeats} repeat" in verdict.headline


@pytest.mark.parametrize(
    ("steps_s", "tone"),
    [((0.09,) * 6, Tone.PAYS), ((0.1,) * 6, Tone.NOTHING_PAYS), ((0.09, 0.12) * 3, Tone.OPEN)],
)
def test_between_a_gain_and_none_the_verdict_is_open(steps_s: tuple[float, ...], tone: Tone) -> None:
    base = [with_steps(record, (0.1,)) for record in cells("torch-ddp", num_repeats=6)]
    own = [with_steps(one, (step,)) for one, step in zip(cells(HALF, num_repeats=6), steps_s, strict=True)]
    assert summary_of(base + own).verdicts[0].tone is tone


def test_an_invalid_repeat_does_not_count_and_is_listed() -> None:
    records = cells("torch-ddp", HALF, num_repeats=7)
    busy = [replace(one, status=Status.INVALID, reason="load 9") if one.repeat == 3 else one for one in records]
    found = summary_of(busy)
    assert {row.num_repeats for row in found.settings[0].cells} == {6}
    assert {(row.status, row.reason, row.num_repeats) for row in found.outcomes} == {(Status.INVALID, "load 9", 1)}


def test_only_failures_still_make_a_summary() -> None:
    summary = summary_of([absent("real/a/b", 0, Status.SKIPPED, "no compiler")])
    assert summary.settings == ()
    assert summary.outcomes[0].reason == "no compiler"


def test_no_records_at_all_is_an_error_with_a_remedy() -> None:
    with pytest.raises(NoRecordsError, match="make bench-quick"):
        summary_of([])


def pair_rows(*policies: str, num_repeats: int = 3) -> dict[str, SharingRow]:
    generator = rng()
    jobs = ("resnet20-digits", "resnet20-digits")
    records = [shared(jobs, policy, n, generator) for n in range(num_repeats) for policy in policies]
    (pair,) = summary_of(records).pairs
    return {found.policy: found for found in pair.rows}


def test_sharing_gains_are_relative_to_exclusive_and_stand_beside_the_bound() -> None:
    rows = pair_rows("exclusive", "naive", "crossover")
    assert rows["exclusive"].is_reference
    crossover = rows["crossover"]
    assert crossover.throughput is not None
    assert crossover.bound is not None
    assert crossover.bound_share is not None
    assert crossover.throughput.median > 1.5
    assert crossover.bound_share.median == pytest.approx(crossover.throughput.median / crossover.bound.median, rel=0.1)


def test_without_exclusive_no_gain_is_given() -> None:
    crossover = pair_rows("crossover")["crossover"]
    assert crossover.throughput is None
    assert crossover.makespan_ratio is None


def test_steady_step_time_leaves_out_steps_that_ran_alone() -> None:
    def job(name: str, steps: tuple[float, ...]) -> JobResult:
        base = single("resnet20-digits", "unfused", 0, rng()).jobs[0]
        times = (RankTimes(rank=0, warmup_s=(), steps_s=steps),)
        return replace(base, name=name, ranks=times, start_s=0.0, end_s=sum(steps))

    record = shared(("resnet20-digits", "resnet20-digits"), "crossover", 0, rng())
    short, long = job("short", (0.5,) * 4), job("long", (0.5,) * 4 + (0.25,) * 20)
    both = replace(record, jobs=(short, long))
    assert steady_step_time_s(both, long) == pytest.approx(0.5)
    assert steady_step_time_s(both, short) == pytest.approx(0.5)


def test_a_repeat_that_ends_worse_than_it_began_cannot_win() -> None:
    base = [with_curve(record, 2.0, 1.0, 0.5) for record in cells("torch-ddp")]
    own = [with_held_out(with_curve(record, 2.0, 1.0, 0.5), 10.4, 0.3) for record in cells(HALF)]
    verdict = summary_of(base + own).verdicts[0]
    assert "10.4" in verdict.details[0]
    assert not verdict.headline.startswith("Pays")


def test_a_win_that_costs_accuracy_says_so_in_the_headline() -> None:
    base = [with_held_out(with_curve(record, 2.0, 1.0, 0.5), 0.6, 0.8) for record in cells("torch-ddp", num_repeats=6)]
    own = [with_held_out(with_curve(record, 2.0, 1.0, 0.5), 0.9, 0.6) for record in cells(HALF, num_repeats=6)]
    headline = summary_of(base + own).verdicts[0].headline
    assert headline.startswith("Pays: tensor-fusion+half")
    assert "60\N{NO-BREAK SPACE}% against 80\N{NO-BREAK SPACE}%" in headline
    assert "6 repeats" in headline


def test_replayed_layers_have_no_loss_and_no_target() -> None:
    found = setting([with_curve(single("resnet50-replay", "torch-ddp", 0, rng(), REPLAY), 2.0, 1.0)])
    assert found.target_loss is None
    assert found.cells[0].training is None


def test_compute_of_a_system_that_hides_its_waiting_is_not_shown() -> None:
    record = cells("torch-ddp", num_repeats=1)[0]
    job = record.jobs[0]
    seen = replace(record, jobs=(replace(job, phases=replace(job.phases, compute_s=0.058, exposed_s=None)),))
    assert row(setting([seen]), "torch-ddp").phases.compute_s is None
    ours = row(setting(cells("unfused", num_repeats=1)), "unfused")
    assert ours.phases.compute_s is not None


def test_overhead_is_what_the_interface_counted_beyond_the_engine() -> None:
    found = setting(cells("unfused", "torch-ddp", num_repeats=1))
    overhead = row(found, "unfused").overhead
    assert overhead is not None
    assert 0.04 < overhead < 0.06
    assert row(found, "torch-ddp").overhead is None


def test_names_are_short_and_the_parameters_left_out_are_noted() -> None:
    found = setting(cells("torch-ddp", HALF))
    assert row(found, HALF).name == "tensor-fusion+half"
    assert found.left_out == "tensor-fusion(cycle_s=0.005)"


def test_rows_are_plain_json_without_nan() -> None:
    text = json.dumps(rows_as_json(summary_of(quick_suite(1))), allow_nan=False)
    assert '"low": null' in text
    assert '"nan"' not in text


def test_replay_says_what_its_links_stand_for() -> None:
    generator = rng()
    found = setting([single("resnet50-replay", "torch-ddp", 0, generator, REPLAY)])
    assert "standing for 10 Gbit/s" in found.title
    assert found.evidence == "replay"
