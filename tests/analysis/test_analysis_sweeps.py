from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from described import described
from hypothesis import given
from hypothesis import strategies as st
from synthetic_sharing import Group, Work, crossover_suite, record

from analysis.rows import Summary
from analysis.sharing.axes import AXES, RHO, axis_of, ideal_gain
from analysis.sharing.metrics import jain_index
from analysis.sharing.rows import CROSSOVER, PHASE, Paired, PairRow, SweepRow
from analysis.sharing.steady import steady_step_time_s
from results.record import FabricFacts, JobResult, RankTimes, Record, Status
from suites.reports import summary_of


@pytest.fixture(scope="module")
def summary() -> Summary:
    return summary_of(crossover_suite())


def sweep(summary: Summary, axis: str, strategy: str = "") -> SweepRow:
    return next(row for row in summary.sweeps if row.axis == axis and strategy in row.names)


def pair(summary: Summary, group: str) -> PairRow:
    return next(row for row in summary.pairs if row.group == group)


@given(st.floats(0.01, 100.0))
def test_two_identical_jobs_gain_one_plus_rho_and_then_one_plus_its_inverse(rho: float) -> None:
    assert math.isclose(ideal_gain(rho), 1 + min(rho, 1 / rho))


@given(st.floats(0.01, 100.0), st.integers(1, 5))
def test_no_number_of_identical_jobs_gains_more_than_two_resources_allow(rho: float, num_jobs: int) -> None:
    assert 1 - 1e-9 <= ideal_gain(rho, num_jobs) <= 2
    assert math.isclose(ideal_gain(rho, max(2, num_jobs)), ideal_gain(rho))


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=1, max_size=5))
def test_jains_index_lies_between_one_job_with_everything_and_all_alike(times: list[tuple[float, float]]) -> None:
    solo, here = zip(*times, strict=True)
    index = jain_index(Paired(repeat=0, solo_s=solo, here_s=here))
    assert 1 / len(times) - 1e-9 <= index <= 1 + 1e-9
    assert jain_index(Paired(repeat=0, solo_s=solo, here_s=tuple(3 * t for t in solo))) == pytest.approx(1.0)


def test_points_of_one_question_make_one_curve_a_policy(summary: Summary) -> None:
    rho = sweep(summary, RHO, "single-bucket")
    assert rho.values == (0.25, 0.5, 1.0, 2.0, 4.0)
    assert rho.group == "rho-no-overlap"
    assert not rho.overlaps
    assert {series.way: len(series.points) for series in rho.series} == {
        "crossover": 5,
        "crossover, fair link": 5,
        "hold": 1,
        "naive": 1,
    }
    assert [bound.median for _, bound in rho.bounds] == pytest.approx([ideal_gain(at) for at in rho.values])


def test_each_value_is_divided_by_the_exclusive_run_at_that_value(summary: Summary) -> None:
    for at, row in sweep(summary, RHO, "single-bucket").series[0].points:
        assert row.throughput is not None
        assert row.throughput.median == pytest.approx(ideal_gain(at) * 0.985, rel=0.02)
        assert row.throughput.n == 10


def test_numbers_of_jobs_make_one_curve_though_the_jobs_differ(summary: Summary) -> None:
    jobs = sweep(summary, "jobs")
    assert jobs.values == (2, 3, 4)
    assert jobs.num_jobs is None
    assert "×" not in jobs.names


def test_sweeps_borrow_the_value_that_another_group_has_measured(summary: Summary) -> None:
    assert sweep(summary, "hosts").values == (2, 4, 8)
    assert sweep(summary, "hosts").borrowed == ("rho-overlap (ρ = 1)",)
    jitter = sweep(summary, "jitter")
    assert jitter.values == (0, 0.1, 0.3)
    assert {series.way for series in jitter.series} == {"crossover"}  # hold was measured where it borrows alone


def test_naive_start_offsets_become_a_range_of_the_pair_and_a_sweep_beside_crossover(summary: Summary) -> None:
    headline = pair(summary, "heterogeneous")
    headline = next(row for row in summary.pairs if row.phases is not None)
    assert headline.phases is not None
    assert headline.phases.num_phases == 5
    assert headline.phases.lowest < headline.phases.median.median < headline.phases.highest
    phases = sweep(summary, PHASE)
    assert phases.level is not None
    assert phases.level.policy == CROSSOVER
    assert {series.way for series in phases.series} == {"naive"}
    assert headline.row("naive") is None


def test_the_same_value_on_two_networks_makes_two_sweeps() -> None:
    records = crossover_suite(only=("jitter",))
    faster = [replace(one, id=f"{one.id}-fast", fabric=replace(one.fabric, rate_bps=1e9)) for one in records]
    assert len(summary_of([*records, *faster]).sweeps) == 2


def test_an_axis_that_is_not_in_the_table_is_drawn_by_its_own_name(summary: Summary) -> None:
    records = [replace(one, axis="credit") for one in crossover_suite(only=("jitter",))]
    (found,) = summary_of(records).sweeps
    assert found.axis == "credit"
    assert axis_of("credit").label == "credit"


def test_one_job_alone_under_a_policy_is_a_sharing_cell_and_no_setting() -> None:
    group = Group(name="jobs", work=(Work(),), ways=("exclusive", "crossover"), axis="jobs", at=1, repeats=2)
    summary = summary_of(group.records(np.random.default_rng(1)))
    assert summary.settings == ()
    assert summary.sweeps[0].values == (1,)


def test_a_doubled_batch_stands_beside_its_pair_and_not_among_the_settings(summary: Summary) -> None:
    rho = sweep(summary, RHO, "fixed-buckets")
    at_one = next(row for row in rho.pairs if row.at == 1.0)
    assert at_one.rival is not None
    assert at_one.rival.batch_size == 32
    assert at_one.rival.throughput.median == pytest.approx(2 / 1.5, rel=0.03)
    assert summary.settings == ()
    assert sum(row.rival is not None for found in summary.sweeps for row in found.pairs if found.axis == RHO) == 1


def test_metrics_of_turns_tails_and_weights_are_those_of_the_records(summary: Summary) -> None:
    row = pair(summary, "heterogeneous-8").row(CROSSOVER)
    assert row is not None
    assert row.turns is not None
    assert row.turns.peak_memory_bytes == 2 * (200 << 20)
    assert row.turns.handover_p50_s is not None
    assert 40e-6 < row.turns.handover_p50_s.median < 90e-6
    assert row.p99_ratio is not None
    assert row.p99_ratio > 1
    assert row.jain is not None
    assert row.jain.median < 1
    assert (row.weights_equal, row.weights_compared) == (20, 20)


def test_jobs_that_differ_are_mixed_and_equal_titles_are_told_apart_by_their_group(summary: Summary) -> None:
    titles = [row.title for row in summary.pairs]
    assert len(set(titles)) == len(titles)
    assert pair(summary, "unequal-lengths").is_mixed
    assert not pair(summary, "null-bytes").is_mixed


def test_optimisers_are_gathered_over_groups_and_the_plainest_is_one(summary: Summary) -> None:
    (found,) = summary.optimisers
    assert found.plain == "single-bucket"
    assert len(found.rows) == 5
    shares = [row.exposed_share for row in found.rows]
    assert shares == sorted(shares, reverse=True)
    for row in found.rows:
        assert row.alone is not None
        assert row.together is not None
        assert row.together.median == pytest.approx(row.alone.median * row.gain.median, rel=0.02)
    assert found.rows[0].alone is not None
    assert found.rows[0].alone.median == pytest.approx(1.0)


def test_cells_that_share_a_name_but_not_a_strategy_are_never_mixed() -> None:
    def made(strategy: str, repeat: int) -> Record:
        group = Group(name="on-top", work=(Work(strategy=strategy),) * 2)
        one = record(group, "crossover", repeat, np.random.default_rng(repeat))
        return described(replace(one, id=f"{strategy}-{repeat}"))

    summary = summary_of([made(strategy, repeat) for strategy in ("a", "b") for repeat in range(3)])
    assert [row.rows[0].num_repeats for row in summary.pairs] == [3, 3]


def test_every_axis_of_the_suite_is_in_the_table() -> None:
    from suites.api import Options
    from suites.crossover.grid import grid

    trials = grid(Options())
    axes = {trial.axis for trial in trials if trial.axis}
    assert axes <= set(AXES)
    assert len({trial.id for trial in trials}) == len(trials)


def test_jobs_that_never_ran_together_share_the_makespan() -> None:
    times = RankTimes(rank=0, warmup_s=(0.1,) * 2, steps_s=(0.1,) * 8)
    jobs = tuple(
        JobResult(
            name=name,
            workload="w",
            system="ours",
            strategy="s",
            device="replay",
            batch_size=1,
            num_steps=8,
            ranks=(times,),
            start_s=start_s,
            end_s=start_s + 1,
        )
        for name, start_s in (("a", 0.0), ("b", 1.0))
    )
    record = described(
        Record(
            id="x",
            suite="crossover",
            cell="g/w/muri",
            repeat=0,
            seed=1,
            status=Status.OK,
            sharing="muri",
            fabric=FabricFacts(kind="emulated", label="replay", num_hosts=4),
            jobs=jobs,
            makespan_s=2.0,
        )
    )
    assert [steady_step_time_s(record, job) for job in record.jobs] == [0.2, 0.2]
